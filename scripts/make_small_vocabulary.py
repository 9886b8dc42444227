"""Make `parsers/kimi_k3/small/tiktoken.model`: 256 bytes and a few thousand merges in the real file's form.

Run it as `python scripts/make_small_vocabulary.py`. The same source gives the same bytes: the text it
learns from is below, counts are integers, and ties go to the pair whose bytes sort first.
"""

from __future__ import annotations

import base64
import heapq
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import regex

from parsers.kimi_k3.vocabulary import SPLIT_PATTERN

TARGET = Path(__file__).parent.parent / "parsers/kimi_k3/small/tiktoken.model"
MERGES = 4_600

# Most used first: a word's weight falls with its place.
WORDS = """
the of and to a in is that for it as was with be by on not he this are or his from at which but have an had
they you were their one all we can her has there been if more when will would who so no she other its may
these what them than some him time into only do such my new about out also two any up first could our then
most see me should after said your over how like now where must well many even back through years much way
down between because people those own day used work life against right just might still world here make
being each before take year under never both same while last great old off come since men go came during
without us place however another found part three again think thought around help high small large use user
using uses given number system state point every form end long general public set group often order early
water next good few left course fact case does did need something until though less almost put always enough
took far once head yet better nothing told why look going find call called second asked later knew hand turn
why side line name different possible change run running known best word words write read file files code
data value values key keys type types string number list object array boolean null true false name index
role system user assistant message messages content tool tools function functions call calls argument
arguments parameter parameters property properties required description schema response request reasoning
thinking think thinks answer answers question questions model models token tokens prompt prompts text output
input stream streaming server client worker workers cache cached prefix block blocks engine gateway router
route routes error errors status finish reason stop length usage total choice choices delta chunk chunks
chat completion completions effort low medium high max min minimal format json enum integer items additional
title default import return class self def print for in while else elif try except raise with async await
lambda yield from global pass break continue assert const let var function export require module package
test tests result results example examples note notes following available described here invoked supported
include including guides much channel raw markdown without any formatting must match the next schema
dynamically extends toolset via lazy loading access existing extended specs image media video audio url http
https www com org path directory folder command shell bash python javascript typescript rust java go html
css sql query select insert update delete table column row rows database join where group limit weather city
country day days week month hour minute temperature celsius fahrenheit location search web page pages
browser document documents report summary summarize translate language english chinese french german spanish
japanese math equation theorem proof number prime sum product difference ratio percent average mean median
variance probability event events time date start started begin ended finished open close closed closing sep
separator marker markers control special ordinary bytes byte character characters letter letters space
spaces newline tab quote quotes bracket brackets comma colon semicolon dot slash dash underscore plus minus
equal equals greater less than not and or xor bit bits hash map node tree graph edge vertex path cycle loop
queue stack heap sort sorted order random sample batch size count counts limit offset page step steps first
then next finally therefore however because although since unless whether either neither instead rather
quite very really actually basically simply clearly usually sometimes often never always maybe perhaps
probably certainly definitely please thank thanks hello hi hey sorry sure okay yes no maybe great good nice
bad wrong right correct incorrect fix fixed bug issue issues problem problems solution solutions approach
method methods way ways idea ideas plan plans goal goals task tasks check checks verify verified validate
valid invalid build builds built deploy release version versions upgrade install config configuration
setting settings option options flag flags env environment variable variables constant memory disk cpu gpu
network latency throughput bandwidth load balance balancing queue queued schedule scheduler prefill decode
decoding attention layer layers weight weights train training inference sampling temperature top penalty
seed logprobs logits vocabulary encoder decoder embedding vector matrix tensor shape dimension batch kernel
compute device host port address socket connection connections timeout retry retries backoff health healthy
ready live alive dead failed failure failures success successful admin key token secret auth user account
session id ids name names uuid kind level levels info debug warning critical log logs metric metrics counter
gauge histogram trace tracing span dashboard alert monitor observe measured measure speed fast slow quick
quickly slowly cost costs price cheap expensive free pay money bank market company business industry
government law country state city town house home family mother father child children son daughter man woman
boy girl friend friends person people group team member leader king queen president army war peace history
century ancient modern science physics chemistry biology nature animal animals plant plants tree trees
flower river sea ocean mountain island earth sun moon star stars sky light dark color red green blue black
white yellow body heart mind eye eyes hand hands foot feet face voice sound music song book books story
stories letter paper page word poem art picture film movie game play player win lose lost ball sport food
eat drink bread meat fish fruit milk coffee tea sugar salt hot cold warm cool rain snow wind storm fire ice
air ground road street car train plane ship boat travel trip journey visit arrive leave stay move walk run
jump fly swim drive ride carry bring send receive give take get got keep hold held catch throw push pull
open shut cut break build make create design draw paint sing dance laugh cry smile speak talk say tell ask
answer listen hear see watch look feel touch smell taste know understand learn teach study school student
teacher university class lesson remember forget believe hope wish want need like love hate fear happy sad
angry afraid strong weak rich poor young old big little short tall wide narrow deep heavy light full empty
clean dirty dry wet safe dangerous easy difficult hard simple complex important necessary useful special
common rare strange beautiful ugly interesting boring funny serious true false real main several various
certain particular specific similar same current previous original final total whole complete partial entire
single double multiple separate together apart inside outside above below behind front middle center top
bottom north south east west near far away across along toward within beyond among throughout despite except
regarding according due instead per via versus plus
"""

ENDINGS = (
    "s",
    "ed",
    "ing",
    "ly",
    "er",
    "ers",
    "est",
    "ion",
    "ions",
    "ation",
    "ment",
    "able",
    "ness",
    "ity",
    "al",
    "ive",
    "ful",
)

# What the model's own markup, JSON and code look like, and some text that is not English.
SNIPPETS = r"""
message role="system" type="tool-declare" role="user" role="assistant" role="tool"
tool="get_weather" index="1" name="
argument key="city" type="string" key="days" type="number" type="object" type="array"
type="boolean" type="null"
think response tools call json message argument tool index key type role name
{"type":"function","function":{"name":"get_weather","description":"Get the
weather","parameters":{"type":"object",
"properties":{"city":{"type":"string","description":"The
city"},"days":{"type":"integer"}},"required":["city"]}}}
{"id": "call_1", "arguments": "{\"path\": \"/usr/lib\"}", "content": null, "ok": true, "n": 12,
"x": [1, 2, 3], "y": {}}
# Tools
Here are the available tools, described in JSONSchema.
```json
[{"function":{"description":"","name":"","parameters":{"properties":{},"type":"object"}},"type":"function"}]
```
`thinking_effort` guides on how much to think in your thinking channel (not including the
response channel), supported
values include `low`, `medium`, `high`, and `max`.
Now the system is invoked with `thinking_effort=max`.
The system is invoked with `tool_choice=required`. You MUST call tools in the next message.
The system is invoked with `response_format=json_schema`. Your response must be raw JSON data.
def main(argv: list[str] | None = None) -> int:
    for index, value in enumerate(values):
        if not value.startswith("_") and len(value) > 0:
            print(f"{index}: {value!r}")
        else:
            raise ValueError("unexpected value")
    return 0

class Node(Protocol):
    def __init__(self, name: str) -> None:
        self.name = name

const result = await fetch(`https://example.com/v1/chat/completions`, { method: "POST" });
if (result.ok) { console.log(result.status); } else { throw new Error("failed"); }
SELECT name, count(*) FROM users WHERE id = 42 GROUP BY name ORDER BY name;
$ cat /etc/hosts | grep -v '^#' > /tmp/out.txt && echo done
I'm sure it's fine, but we don't know; you'll see what they've done, and he'd say that she's right.
1. First, 2. Second, 3. Third - and so on... (see above) [1] "quoted" 'single' 10:30 50% $100
a/b x=1 y+2 --flag
你好,世界!请问今天的天气怎么样?我想知道这个问题的答案。谢谢你的帮助,再见。中国 北京 上海
これは日本語の文章です。ありがとうございます。 안녕하세요 세계
Привет мир Bonjour le monde, où êtes-vous? Grüße aus Köln. ¿Qué
 tal?
""".strip("\n")


def training_pieces() -> Counter[bytes]:
    """Pieces as the model's pattern cuts them, with how often each is seen."""
    counts: Counter[bytes] = Counter()
    pattern = regex.compile(SPLIT_PATTERN, regex.VERSION1)
    for line in SNIPPETS.splitlines(keepends=True):
        for piece in pattern.findall(line):
            counts[piece.encode()] += 800
    for place, word in enumerate(dict.fromkeys(WORDS.split())):
        weight = 400_000 // (place + 100)
        for ending in ("", *ENDINGS):
            whole = word + ending
            share = weight if not ending else weight // 12
            for form, divisor in (
                (" " + whole, 1),
                (whole, 3),
                (" " + whole.capitalize(), 6),
                (whole.capitalize(), 8),
            ):
                counts[form.encode()] += share // divisor
    for number in range(1000):
        counts[str(number).encode()] += 30
    for level in range(1, 9):
        # The pattern leaves an indentation's last space to the word behind it.
        counts[b" " * (4 * level - 1)] += 1_000 // level
    counts[b"\n\n"] += 5_000
    return counts


def train(pieces: Counter[bytes], merges: int) -> list[bytes]:
    """Byte-pair encoding's merges, most frequent pair first."""
    words = [[bytes([byte]) for byte in piece] for piece in pieces]
    weights = list(pieces.values())
    totals: Counter[tuple[bytes, bytes]] = Counter()
    holders: defaultdict[tuple[bytes, bytes], set[int]] = defaultdict(set)
    for number, word in enumerate(words):
        for pair in pairwise(word):
            totals[pair] += weights[number]
            holders[pair].add(number)
    heap = [(-total, pair) for pair, total in totals.items()]
    heapq.heapify(heap)
    learned: dict[bytes, None] = {}
    while heap and len(learned) < merges:
        total, best = heapq.heappop(heap)
        if -total != totals[best] or not total:
            continue
        learned[best[0] + best[1]] = None
        for pair in _merge(best, words, weights, totals, holders):
            heapq.heappush(heap, (-totals[pair], pair))
    return list(learned)


def _merge(
    best: tuple[bytes, bytes],
    words: list[list[bytes]],
    weights: list[int],
    totals: Counter[tuple[bytes, bytes]],
    holders: defaultdict[tuple[bytes, bytes], set[int]],
) -> set[tuple[bytes, bytes]]:
    """Merges one pair in every word that holds it; returns the pairs whose totals changed."""
    changed = set()
    for number in sorted(holders.pop(best)):
        word = words[number]
        for pair in pairwise(word):
            totals[pair] -= weights[number]
            changed.add(pair)
        merged: list[bytes] = []
        for piece in word:
            if merged and (merged[-1], piece) == best:
                merged[-1] += piece
            else:
                merged.append(piece)
        words[number] = merged
        for pair in pairwise(merged):
            totals[pair] += weights[number]
            holders[pair].add(number)
            changed.add(pair)
    return changed


def main() -> None:
    tokens = [bytes([byte]) for byte in range(256)] + train(training_pieces(), MERGES)
    lines = (base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_bytes(b"".join(lines))
    print(f"{TARGET}: {len(tokens)} tokens, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
