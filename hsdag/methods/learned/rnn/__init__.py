"""The RNN-based method: a recurrent network reads units and writes their devices (Mirhoseini et al. 2017)."""
