#!/usr/bin/env python3
"""Uses the library as a stranger's project does, and runs what it built.

usage: consume.py --root R --work W --cmake CMAKE --compiler C <way>

Everything happens in copies under W. An installed package is used after the build tree that
installed it is gone, and after its prefix has moved.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys

SOURCES = ("CMakeLists.txt", "LICENSE", "cmake", "include", "meson.build")


class Consumer:
    def __init__(self, arguments):
        self.root, self.work = arguments.root, arguments.work
        self.cmake = arguments.cmake
        self.environment = dict(os.environ, CXX=arguments.compiler)
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.root / "tests/consumer", self.work / "consumer")
        self.project = self.work / "consumer" / arguments.way
        self.build = self.work / "build"

    def run(self, *command, **extra):
        print("+", *command, flush=True)
        environment = self.environment | extra
        done = subprocess.run([str(part) for part in command], env=environment, cwd=self.project,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            print(done.stdout)
            sys.exit(f"failed with {done.returncode}")
        return done.stdout

    def copy_sources(self, target):
        target.mkdir(parents=True)
        for name in SOURCES:
            source = self.root / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, target / name)
        return target

    def install(self):
        """Configures, installs without building, deletes sources and build, moves the prefix."""
        sources = self.copy_sources(self.work / "sources")
        first, prefix = self.work / "prefix-first", self.work / "prefix"
        tree = self.work / "tree"
        self.run(self.cmake, "-S", sources, "-B", tree, f"-DCMAKE_INSTALL_PREFIX={first}")
        self.run(self.cmake, "--install", tree)
        shutil.rmtree(tree)
        shutil.rmtree(sources)
        first.rename(prefix)
        return prefix

    def build_with_cmake(self, *definitions):
        self.run(self.cmake, "-S", self.project, "-B", self.build, *definitions)
        self.run(self.cmake, "--build", self.build)
        return self.build / "consumer"

    def find_package(self):
        return self.build_with_cmake(f"-DCMAKE_PREFIX_PATH={self.install()}")

    def add_subdirectory(self):
        sources = self.copy_sources(self.work / "sources")
        return self.build_with_cmake(f"-DTESSERA_SOURCE_DIR={sources}")

    def fetch_content(self):
        sources = self.copy_sources(self.work / "sources" / "tessera")
        archive = shutil.make_archive(str(self.work / "tessera"), "gztar", sources.parent, "tessera")
        shutil.rmtree(sources)
        return self.build_with_cmake(f"-DTESSERA_ARCHIVE={archive}")

    def build_with_meson(self, build, *options, **environment):
        self.run("meson", "setup", *options, build, **environment)
        self.run("meson", "compile", "-C", build)
        return build / "consumer"

    def meson(self):
        """As a subproject, and as a package that meson itself has installed."""
        shutil.copy(self.work / "consumer" / "main.cpp", self.project)
        subproject = self.copy_sources(self.project / "subprojects" / "tessera")
        print(self.run(self.build_with_meson(self.build, "--wrap-mode=forcefallback")), end="")

        prefix, tree = self.work / "prefix", self.work / "tree"
        self.run("meson", "setup", tree, subproject, f"--prefix={prefix}")
        self.run("meson", "install", "-C", tree)
        shutil.rmtree(tree)
        shutil.rmtree(subproject)
        return self.build_with_meson(self.work / "build-installed",
                                     PKG_CONFIG_PATH=str(prefix / "share/pkgconfig"))

    def pkg_config(self):
        prefix = self.install()
        self.run("make", PKG_CONFIG_PATH=str(prefix / "share/pkgconfig"))
        return self.project / "consumer"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--cmake", required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("way")
    arguments = parser.parse_args()
    consumer = Consumer(arguments)
    program = getattr(consumer, arguments.way)()
    print(consumer.run(program), end="")
    shutil.rmtree(consumer.work)


main()
