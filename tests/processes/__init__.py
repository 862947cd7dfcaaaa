"""Several processes on one database, some of them killed: what they did is written down and judged.

`worker` is the child, `harness` starts and kills it, `log` is what all of them append to, and
`checker` says afterwards whether what they did was right. The checker imports nothing of ours.
"""
