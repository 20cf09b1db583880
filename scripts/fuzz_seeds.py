#!/usr/bin/env python3
"""Writes the first inputs of the fuzz targets: what real engines, gateways and clients sent.

usage: fuzz_seeds.py CORPUS_FOLDER

The recordings in tests/data are always there; with WARMPATH_SHARED the shared data are read too (and must then exist).
"""

import gzip
import hashlib
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Larger inputs only slow the search down.
MOST_BYTES = 65_536
MOST_SEEDS = 400
APIS = ["chat_completions", "completions", "embeddings", "responses", "anthropic_messages"]


def put(folder: Path, seed: bytes) -> None:
    """One file for each input, named by its content, as libFuzzer does."""
    if len(seed) <= MOST_BYTES:
        (folder / hashlib.sha1(seed).hexdigest()).write_bytes(seed)


def lines(path: Path):
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path, encoding="utf-8")
    with opened as file:
        for line in file:
            if line.strip():
                yield json.loads(line)


def field(number: int, value: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def flag(number: int) -> bytes:
    """A protobuf field that is true."""
    return varint(number << 3) + b"\x01"


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def headers(pairs, end: bool) -> bytes:
    entries = b"".join(field(1, field(1, key) + field(3, value)) for key, value in pairs)
    return field(1, entries) + (flag(3) if end else b"")


def exchange(mode: int, path: bytes, body: bytes) -> bytes:
    """Request and response as Envoy would send them, each message behind its length."""
    half = len(body) // 2
    messages = [
        field(2, headers([(b":method", b"POST"), (b":path", path)], False)),
        field(4, field(1, body[:half])),
        field(4, field(1, body[half:]) + flag(2)),
        field(3, headers([(b":status", b"200"), (b"content-type", b"text/event-stream")], False)),
        field(5, field(1, b'data: {"choices":[]}\n\ndata: [DONE]\n\n') + flag(2)),
    ]
    return bytes([mode]) + b"".join(len(m).to_bytes(2, "big") + m for m in messages)


def recorded_batches(path: Path):
    for row in lines(path):
        for frame in row.get("frames") or []:
            parts = frame.get("frames", []) if isinstance(frame, dict) else frame
            if len(parts) == 3 and parts[2]:
                yield bytes.fromhex(parts[2])


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    corpus = Path(sys.argv[1])
    folders = {name: corpus / name for name in ["event_batch", "metrics_page", "exchange", "request"]}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)

    bodies = {0: [b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'], 1: [b'{"prompt":[1,2,3]}']}
    batches, pages = [], []
    for path in sorted((ROOT / "tests/data/recordings").glob("*.jsonl.gz")):
        batches += recorded_batches(path)
        for row in lines(path):
            if isinstance(row.get("request"), dict):
                api = 0 if "messages" in row["request"] else 1
                bodies[api].append(json.dumps(row["request"]).encode())

    shared = os.environ.get("WARMPATH_SHARED")
    if shared:
        data = Path(shared) / "data"
        for row in lines(data / "events/vllm-encoded/kv_event_batches.jsonl"):
            batches.append(bytes.fromhex(row["payload_hex"]))
        pages += [path.read_bytes() for path in sorted((data / "captures").glob("*metrics.txt"))]
        for api, name in enumerate(APIS):
            path = data / f"requests/recorded/{name}.jsonl"
            if path.exists():
                bodies.setdefault(api, []).extend(json.dumps(row["body"]).encode() for row in lines(path))
    else:
        print("fuzz seeds: WARMPATH_SHARED is not set; metrics pages and recorded bodies are left out")
    pages.append(b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 1.0\n')

    for batch in batches[:MOST_SEEDS]:
        put(folders["event_batch"], batch)
    for page in pages:
        # Whole pages and the part that a filtered page would have.
        put(folders["metrics_page"], page)
        kept = [line for line in page.splitlines(True) if b"num_requests" in line or b"cache" in line]
        put(folders["metrics_page"], b"".join(kept))
    for api, of_api in bodies.items():
        for body in of_api[:MOST_SEEDS]:
            put(folders["request"], bytes([api]) + body)
    for number, body in enumerate(bodies[0][:MOST_SEEDS]):
        if len(body) < 20_000:
            put(folders["exchange"], exchange(number % 5, b"/v1/chat/completions", body))
    for name, folder in folders.items():
        print(f"fuzz seeds: {name} has {sum(1 for _ in folder.iterdir())}")


if __name__ == "__main__":
    main()
