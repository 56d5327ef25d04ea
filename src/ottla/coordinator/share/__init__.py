"""The share coordinator: the state of share partitions, in the topic `__share_group_state`."""
