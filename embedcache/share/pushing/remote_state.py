"""What a remote has, for whoever is about to push."""

from __future__ import annotations

from embedcache.cache import Cache
from embedcache.share.remote.manifest import Stock
from embedcache.share.remote.remote import Remote, Survey
from embedcache.share.remote.sign import Signer, signed_among


class RemoteState:
    """The manifests of a remote: read when they are first asked for, and again only when told to.

    Args:
        remote: where is pushed to.
        cache: keeps copies of manifests for the next time.
        signer: who signs the push: then only the files of manifests that this key has signed count.

    Attributes:
        remote: the same.
    """

    def __init__(self, remote: Remote, cache: Cache, signer: Signer | None = None) -> None:
        self.remote = remote
        self._cache, self._signer = cache, signer
        self._survey: Survey | None = None
        self._stock: Stock | None = None

    def survey(self) -> Survey:
        """Return all manifests, none where there is no remote yet.

        Raises:
            RemoteError: if the remote cannot be reached.
        """
        return self._survey or self.look_again()

    def stock(self) -> Stock:
        """Return the files of those manifests that can be read, and count.

        Raises:
            RemoteError: if the remote cannot be reached.
        """
        if self._stock is None:
            manifests = self.survey().manifests
            if self._signer is not None:
                ids = [manifest.id for manifest in manifests]
                signed = set(signed_among(self.remote, ids, self._signer.public))
                manifests = tuple(manifest for manifest in manifests if manifest.id in signed)
            self._stock = Stock(manifests)
        return self._stock

    def objects(self) -> set[str]:
        """Return the digests of all objects that a manifest lists, whoever has signed it.

        Raises:
            RemoteError: if the remote cannot be reached.
        """
        files = [file for manifest in self.survey().manifests for file in manifest.files]
        return {file.sha256 for file in files} | {file.index.sha256 for file in files if file.index}

    def look_again(self) -> Survey:
        """Return all manifests as they are now: others may have added or deleted some.

        Raises:
            RemoteError: if the remote cannot be reached, or the manifests are too many or too large.
        """
        before = self._survey
        self._survey = self.remote.survey(self._cache) if self.remote.is_there() else Survey((), {})
        if before is None or before.manifests != self._survey.manifests:
            self._stock = None
        return self._survey
