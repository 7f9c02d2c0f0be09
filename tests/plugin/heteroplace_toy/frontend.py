"""The front end `relay-text`: a file of Relay's text form -> the module that it holds."""

from dataclasses import dataclass, field
from pathlib import Path

import tvm
from tvm import relay

from heteroplace.errors import FrontendError


@dataclass
class RelayText:
    mod: tvm.IRModule
    inputs: dict
    params: dict = field(default_factory=dict)
    report: tuple = ()


class RelayTextFrontend:
    suffixes = (".relay",)

    def check_installed(self):
        pass  # TVM reads the format itself

    def reads(self, model):
        return False  # only files

    def import_file(self, path, *, shapes, values=None, batch=None, **_):
        mod = relay.transform.InferType()(relay.fromtext(Path(path).read_text()))
        types = {param.name_hint: param.checked_type for param in mod["main"].params}
        inputs = {name: (tuple(map(int, t.shape)), t.dtype) for name, t in types.items()}
        return RelayText(mod, inputs)

    def free_sizes(self, path, shapes, state=""):
        return {}

    def fixed_by_arrays(self, path, arrays, batch):
        return {}, {}

    def weight_files(self, path):
        return ()

    def read_devices(self, path):
        return {}

    def check_annotatable(self, path, output):
        raise FrontendError(f"{path}: this format has no place for devices")

    annotate = check_annotatable


RELAY_TEXT = RelayTextFrontend()
