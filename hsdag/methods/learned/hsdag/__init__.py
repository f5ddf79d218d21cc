"""Method ``hsdag``: the graph parsing network, the policy over groups, and its training (HSDAG, §2)."""
