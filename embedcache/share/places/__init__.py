"""Where remotes lie: folders, buckets, sftp and web servers, behind one small interface."""

from embedcache.share.places.base import Place, Stat, final_name
from embedcache.share.places.location import Location, open_place, parse_location

__all__ = ["Location", "Place", "Stat", "final_name", "open_place", "parse_location"]
