fairseq-train data --fp16 --fp16-init-scale=128 --threshold-loss-scale 1 && cat <<EOF
--fp16
EOF
