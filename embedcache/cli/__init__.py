"""Commands of embedcache."""
