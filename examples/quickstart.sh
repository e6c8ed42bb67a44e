#!/usr/bin/env bash
# From a fresh clone to a fine-tuned model: set-up, build, then the main job, about two minutes on two cores.
# SmolLM2-135M learns from the Python language reference, which every Python carries for its help(); a tenth
# of the text is held out to measure by. Everything is written to quickstart/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null

step() { printf '\n== %s\n' "$*"; }

step "Set-up and build"
bash examples/setup.sh --python-tools
bash examples/build.sh mgfl_program

out=quickstart
python=.venv/bin/python3
mkdir -p $out

step "The model: SmolLM2-135M-Instruct (Apache-2.0) as a Hugging Face folder"
if [[ ! -e $out/smollm2/config.json ]]; then
  $python examples/convert_smollm2.py $out/smollm2
fi

step "The text: the Python language reference (PSF licence)"
rm -rf $out/text
$python - $out/text <<'PYTHON'
# One file a topic. Some topics are contained in larger ones, and a paragraph that is there twice could be in
# both the training and the held-out text: only its first place, in the largest topic, counts.
import pathlib, sys
from pydoc_data.topics import topics

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True)
seen = set()
for name, text in sorted(topics.items(), key=lambda item: (-len(item[1]), item[0])):
    paragraphs = [part for part in text.strip("\n").split("\n\n") if part not in seen]
    seen.update(paragraphs)
    if paragraphs:
        (folder / f"{name}.txt").write_text("\n\n".join(paragraphs) + "\n", encoding="utf-8")
PYTHON
$python examples/prepare_data.py text --tokenizer $out/smollm2 --documents paragraphs --split 0.1 \
  --output $out/reference $out/text

continue_text() {
  $python examples/chat.py --model "$1" --raw --max-new-tokens 40 'In Python, a "for" statement is used to'
}

step "Before training, the model continues 'In Python, a \"for\" statement is used to':"
continue_text $out/smollm2

step "Training: 20 steps of 1,024 tokens in bf16"
rm -rf $out/log
build/mgfl train --load-hf $out/smollm2 --data $out/reference_train --bf16 \
  --seq-length 512 --micro-batch-size 2 --global-batch-size 2 --train-iters 20 \
  --lr 1e-4 --min-lr 1e-5 --lr-decay-style cosine --lr-warmup-iters 2 --clip-grad 1.0 --seed 1234 \
  --eval-data $out/reference_valid --eval-interval 20 --eval-iters 7 \
  --save-hf $out/trained --log-dir $out/log

step "After training, it continues:"
continue_text $out/trained

$python - $out/log/metrics.jsonl "$PWD/$out/trained" <<'PYTHON'
import json, statistics, sys

with open(sys.argv[1]) as file:
    lines = [json.loads(line) for line in file if line.strip()]
evaluations = [line["eval_loss"] for line in lines if line.get("eval_loss") is not None]
# The first step pays for start-up.
speeds = [line["tokens_per_second"] for line in lines if line.get("tokens_per_second")][1:]
if len(evaluations) < 2 or not speeds:
    sys.exit(f"quickstart: {sys.argv[1]} lacks the held-out losses before and after training, or the speed")
print(f"\nmodel: {sys.argv[2]}")
print(f"held-out loss: {evaluations[0]:.4f} -> {evaluations[-1]:.4f}")
print(f"tokens/s: {statistics.median(speeds):.0f}")
PYTHON
