#!/bin/bash
SCALE=16
OPTS=(--fp16 "--initial-loss-scale" $((2**SCALE)))
torchrun pretrain_gpt.py ${OPTS[@]} \
  --loss-scale-window 1000 --clip-grad 1.0 # comment
