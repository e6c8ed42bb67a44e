"""Two ranks of one thread each beside one process of two threads: data parallelism on SmolLM2-135M's shape, tensor and
sequence parallelism on the same with 8 heads and 4 kv heads of 64, which two ranks can share. One global batch in all.

  parallel.py PATH/mgfl [--precision fp32|bf16] [--rounds 3] [--steps 4] [--sequences 4] [--length 512]

Each round runs every layout once, in turns; the ratio is that of the medians of all rounds' steps. Status 1 where a
promised ratio is not reached.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from promises import shortfall

SHAPE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
         "num_hidden_layers": 30, "vocab_size": 49152, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
         "rope_theta": 100000, "tie_word_embeddings": True, "hidden_act": "silu", "head_dim": 64,
         "num_attention_heads": 9, "num_key_value_heads": 3}
SHARED = {**SHAPE, "num_attention_heads": 8, "num_key_value_heads": 4}

# name: (shape, ranks, data-parallel size, flags, beside which the ratio stands, promised ratio)
LAYOUTS = {
    "one process, 2 threads": (SHAPE, 1, 1, [], None, None),
    "dp 2": (SHAPE, 2, 2, [], "one process, 2 threads", 0.9),
    "one process, 2 threads, 8 heads": (SHARED, 1, 1, [], None, None),
    "tp 2": (SHARED, 2, 1, ["--tensor-model-parallel-size", "2"], "one process, 2 threads, 8 heads", 0.8),
    "tp 2, sequence parallel": (SHARED, 2, 1, ["--tensor-model-parallel-size", "2", "--sequence-parallel"],
                                "one process, 2 threads, 8 heads", 0.8),
}


def run(program, folder, name, args):
    shape, ranks, data_parallel, flags, _, _ = LAYOUTS[name]
    config = os.path.join(folder, "shape.json")
    with open(config, "w") as file:
        json.dump(shape, file)
    launcher = [] if ranks == 1 else ["mpirun", "--bind-to", "none", "--oversubscribe", "-n", str(ranks)]
    command = [*launcher, program, "bench", "--config-json", config, "--threads", str(2 // ranks), "--seq-length",
               str(args.length), "--micro-batch-size", str(args.sequences // data_parallel), "--steps", str(args.steps),
               *([] if args.precision == "fp32" else [f"--{args.precision}"]), *flags]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    return json.loads(output.splitlines()[-1])


def ratios(seconds):
    """(what stands beside what, ratio of their speeds, promised ratio) of each layout, of the seconds of all steps."""
    return [(f"{name} beside {beside}", statistics.median(seconds[beside]) / statistics.median(seconds[name]), promised)
            for name, (_, _, _, _, beside, promised) in LAYOUTS.items() if beside]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    args = parser.parse_args()
    seconds = {name: [] for name in LAYOUTS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            for name in LAYOUTS:
                seconds[name] += run(args.program, folder, name, args)["step_seconds_all"]
    for name in LAYOUTS:
        print(f"{name:<34} {args.sequences * args.length / statistics.median(seconds[name]):8.1f} tokens/s")
    found = ratios(seconds)
    for what, ratio, promised in found:
        print(f"{what:<66} {ratio:5.2f} (promised {promised})")
    sys.exit(shortfall(found))


if __name__ == "__main__":
    main()
