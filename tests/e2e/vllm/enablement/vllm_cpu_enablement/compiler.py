"""Triton looks for `<backend>.compiler`; vLLM's Model Runner V2 only asks that a 'cpu' backend exists."""

from triton.backends.compiler import BaseBackend


class CPUBackend(BaseBackend):
    @staticmethod
    def supports_target(target):
        return target.backend == "cpu"

    def hash(self):
        return "interpreter-only"

    def parse_options(self, options):
        raise NotImplementedError("this backend compiles nothing: set TRITON_INTERPRET=1")

    def add_stages(self, stages, options, language=None):
        raise NotImplementedError("this backend compiles nothing: set TRITON_INTERPRET=1")

    def load_dialects(self, context):
        del context

    def get_module_map(self):
        return {}
