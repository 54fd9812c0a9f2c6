"""Interim."""
from dataclasses import dataclass
from typing import Any
import numpy as np
class Scheme: ...
@dataclass(frozen=True)
class IID(Scheme):
    def assign(self, pool, clients, rng):
        return [np.sort(p) for p in np.array_split(rng.permutation(pool), clients)]
@dataclass(frozen=True, eq=False)
class Dirichlet(Scheme):
    alpha: float; labels: Any; min_samples: int = 10
    def assign(self, pool, clients, rng):
        lab=np.asarray(self.labels)[pool]
        for _ in range(1000):
            parts=[[] for _ in range(clients)]
            for c in np.unique(lab):
                idx=rng.permutation(pool[lab==c]); p=rng.dirichlet(np.full(clients,self.alpha))
                for k,s in enumerate(np.split(idx,(np.cumsum(p)[:-1]*len(idx)).astype(int))): parts[k].append(s)
            parts=[np.concatenate(p) for p in parts]
            if min(map(len,parts))>=self.min_samples: return parts
        raise ValueError
class Shards(Scheme): ...
class Quantity(Scheme): ...
class ByGroup(Scheme): ...
