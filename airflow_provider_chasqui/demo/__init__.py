"""To see it work: a first look (`make demo`), and the whole story (`make story`)."""
