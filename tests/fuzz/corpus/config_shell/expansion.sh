A="x y" B=${A:-z}; python t.py --fp16 '--min-loss-scale' {1,2} $(date) "$@" | tee l
