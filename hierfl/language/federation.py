"""Interim."""
from dataclasses import dataclass, field
import numpy as np
class Client:
    def __init__(self, samples=None, parameters=None, name=None):
        samples = samples or {}
        self.tables = tuple(samples) if isinstance(samples,(list,tuple)) else ()
        merged = {}
        for t in (self.tables or (samples,)): merged.update(t)
        self.samples={k:(v if hasattr(v,'ppf') else np.asarray(v)) for k,v in merged.items()}; self.parameters={k:np.asarray(v,float) for k,v in (parameters or {}).items()}; self.name=name
    def is_distribution(self,s): return hasattr(self.samples[s],'ppf')
    def num_samples(self,s): return None if self.is_distribution(s) else len(self.samples[s])
class Federation:
    def __init__(self, clients, server=None, weights="uniform", test=None):
        self.clients=tuple(clients); self.server=server; self.weights=weights; self.test=test
    @property
    def num_clients(self): return len(self.clients)
    @property
    def weights_label(self): return self.weights if isinstance(self.weights,str) else "explicit"
    @classmethod
    def split(cls, samples, clients, scheme=None, server_fraction=0., test_fraction=0., parameters={}, weights="uniform", seed=0, min_samples=1):
        from hierfl.language.partition import IID
        rng=np.random.default_rng(seed); n=len(next(iter(samples.values()))); perm=rng.permutation(n)
        nt=int(test_fraction*n); test,rest=perm[:nt],perm[nt:]; ns=int(server_fraction*len(rest)); srv,pool=rest[:ns],rest[ns:]
        parts=(scheme or IID()).assign(pool,clients,rng)
        take=lambda idx:{k:np.asarray(v)[idx] for k,v in samples.items()}
        return cls([Client(take(p),{k:(v(i) if callable(v) else v) for k,v in parameters.items()}) for i,p in enumerate(parts)], Client(take(srv)) if ns else None, weights, take(test) if nt else None)
