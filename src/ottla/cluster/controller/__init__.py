"""Decisions on the cluster: pure functions from an image to changes, or an error.

Every function decides on one image and changes nothing; `ClusterState.commit` applies the changes.
"""
