#!/usr/bin/env python3
"""Writes the seeds of the corpus: the wire goldens, and the first batches of each recording."""

import base64
import json
import pathlib

here = pathlib.Path(__file__).resolve().parent
testdata = here.parents[2] / "testdata"


def write(target, name, content):
    folder = here / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def split(frames):
    return b"".join(bytes([len(it)]) + it for it in frames if len(it) < 256)


goldens = json.loads((testdata / "wire" / "golden_wire.json").read_text())
for name, golden in goldens.items():
    payload = bytes.fromhex(golden["hex"])
    write("decode", f"wire-{name}", payload)
    write("engine", f"wire-{name}", b"\x00\x00" + len(payload).to_bytes(2, "big") + payload + b"\x0e")

for folder in sorted((testdata / "captures").iterdir()):
    if not folder.is_dir():
        continue
    batches = []
    with open(folder / "frames.jsonl") as file:
        for line in file:
            _topic, number, payload = map(base64.b64decode, json.loads(line)["frames"])
            batches.append((int.from_bytes(number, "big"), payload))
    # The shortest ones have most to tell per byte.
    for at, (_, payload) in enumerate(sorted(batches[:40], key=lambda it: len(it[1]))[:4]):
        write("decode", f"{folder.name}-{at}", payload)
    for settings, step in ((2, 0x00), (3, 0x08)):
        # By subscription; and after a connection by replay, to its end.
        steps = bytes([settings]) + (b"\x0c" if step else b"")
        for _, payload in [it for it in batches if len(it[1]) < 2_000][:12]:
            steps += bytes([step]) + len(payload).to_bytes(2, "big") + payload + b"\x0e"
        write("engine", f"{folder.name}-{settings}", steps + (b"\x0a\x0e" if step else b""))

# A field that no released vLLM sends yet.
removed = b"\x84\xa4type\xacBlockRemoved\xacblock_hashes\x92\x01\x02\xa6medium\xa3GPU\xb5remaining_copy_counts\x92\x00\x01"
payload = b"\x93\xcb" + bytes(8) + b"\x91" + removed + b"\x00"
write("decode", "remaining-copies", payload)
write("engine", "remaining-copies", b"\x00\x00" + len(payload).to_bytes(2, "big") + payload + b"\x0e")

number, end = (7).to_bytes(8, "big"), b"\xff" * 8
write("replayed", "message", split([b"", number, b"payload"]))
write("replayed", "message-with-topic", split([b"", b"topic", number, b"payload"]))
write("replayed", "end", split([b"", end, b""]))
write("replayed", "end-with-topic", split([b"", b"", end, b""]))
