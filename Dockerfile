FROM python:3.11-slim AS build
RUN pip install --no-cache-dir uv==0.13.9
ENV UV_PROJECT_ENVIRONMENT=/opt/kvgateway \
    UV_PYTHON_DOWNLOADS=never \
    UV_COMPILE_BYTECODE=1 \
    UV_LINK_MODE=copy
WORKDIR /src
# The dependencies change less often than the code: a layer of their own.
COPY pyproject.toml README.md LICENSE ./
RUN uv sync --no-default-groups --no-install-project
COPY . .
RUN uv sync --no-default-groups --no-editable

FROM python:3.11-slim
RUN pip uninstall --yes setuptools wheel pip \
    && useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin kvgateway
COPY --from=build /opt/kvgateway /opt/kvgateway
ENV PATH=/opt/kvgateway/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    KVGATEWAY_HOST=0.0.0.0 \
    KVGATEWAY_ADMIN_HOST=0.0.0.0
USER 10001
EXPOSE 8000 8090
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ.get('KVGATEWAY_PORT', '8000') + '/health', timeout=2)"]
CMD ["kvgateway", "serve"]
