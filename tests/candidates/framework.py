"""Stands for torch and others: code that lies neither in the candidate's folder nor in the standard library."""

import ctypes
import json
import os
import socket
import subprocess


def start_a_compiler():
    return subprocess.run(["true"], check=True).returncode == 0


def look_at_the_machine():
    with open("/proc/self/status") as file:
        return len(file.read())


def fill_its_cache(folder):
    path = os.path.join(folder, "kernel.txt")
    write(path)
    os.rename(path, path + ".done")
    return read(path + ".done")


def load_a_library():
    return str(ctypes.CDLL(None))


def run_generated_code():
    names = {}
    exec(compile("def kernel():\n    return 6 * 7\n", "<generated>", "exec"), names)
    return names["kernel"]()


__all__ = ["json"]


def look_up_a_name():
    return socket.gethostbyname("localhost")


def write(path):
    with open(path, "w") as file:
        return file.write("x")


def read(path):
    with open(path) as file:
        return file.read()
