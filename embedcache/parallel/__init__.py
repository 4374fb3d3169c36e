"""Builds that several processes share: windows of missing rows, their workers, and engines that run these."""
