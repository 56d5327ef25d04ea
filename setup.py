"""What pyproject.toml cannot say yet: kernels in C that are left out where nothing compiles."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "ottla.spark._kernel",
            sources=["src/ottla/spark/_kernel.c"],
            extra_compile_args=["-O2"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
