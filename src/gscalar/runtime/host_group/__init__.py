"""The ranks of one launch over sockets and shared memory, for frameworks that bring no transport of their own."""

from gscalar.runtime.host_group.group import HostGroup

__all__ = ["HostGroup"]
