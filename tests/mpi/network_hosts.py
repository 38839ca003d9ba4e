#!/usr/bin/env python3
"""Ranks on two hosts that have only a network between them: bits, and a host that is cut off.

The hosts are network namespaces of this machine with addresses of their own and a cable (veth);
mpirun reaches the second as it would by ssh. Exit status 77 where that cannot be set up: it needs
root, ip and Open MPI.

usage: network_hosts.py MPI_CHECK MPI_STEPS MPIEXEC FLAG
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

check, steps, mpiexec, flag = sys.argv[1:5]
TIMEOUT_S = 4  # of a collective
LAUNCHER_S = 7  # after which mpirun gives a host up: its keepalive, or the kernel's retries
TAG = f"tss{os.getpid() % 100000}"
HOSTS = ["10.119.41.1", "10.119.41.2"]
failures = []
# As root and on fewer cores than ranks, which Open MPI wants to be told.
for name in ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM", "MCA_rmaps_base_oversubscribe"):
    os.environ.setdefault(f"OMPI_{name}", "1")


def fail(text):
    print("FAILED:", text)
    failures.append(text)


def ip(*arguments, must=True):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if must and done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.returncode == 0


def namespace(host):
    return f"{TAG}-{host}"


def cable(host):
    return f"{TAG}v{host[-1]}"


def set_up():
    for host in HOSTS:
        ip("netns", "add", namespace(host))
    ip("link", "add", cable(HOSTS[0]), "type", "veth", "peer", "name", cable(HOSTS[1]))
    for host in HOSTS:
        ip("link", "set", cable(host), "netns", namespace(host))
        ip("-n", namespace(host), "addr", "add", f"{host}/24", "dev", cable(host))
        ip("-n", namespace(host), "link", "set", cable(host), "up")
        ip("-n", namespace(host), "link", "set", "lo", "up")
        # Where mpirun has sent something to a host that is gone, not the keepalive but this ends
        # its wait: some 6 s, not the 15 minutes that are usual.
        ip("netns", "exec", namespace(host), "sh", "-c",
           "echo 4 > /proc/sys/net/ipv4/tcp_retries2")


def tear_down():
    for host in HOSTS:
        pids = subprocess.run(["ip", "netns", "pids", namespace(host)], capture_output=True,
                              text=True, check=False).stdout.split()
        for pid in pids:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except OSError:
                pass
        ip("netns", "del", namespace(host), must=False)


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def mpirun(agent, ranks, program, *arguments):
    options = {"plm_rsh_agent": agent, "btl": "tcp,self", "btl_tcp_if_include": "10.119.41.0/24",
               "oob_tcp_if_include": "10.119.41.0/24", "oob_tcp_keepalive_time": "3",
               "oob_tcp_keepalive_intvl": "1", "oob_tcp_keepalive_probes": "3"}
    command = ["ip", "netns", "exec", namespace(HOSTS[0]), mpiexec, "--host",
               ",".join(f"{host}:{ranks // 2}" for host in HOSTS)]
    for name, value in options.items():
        command += ["--mca", name, value]
    return [*command, flag, str(ranks), program, *arguments]


def ended(text, pattern):
    found = re.search(pattern, text)
    return found.group(1) if found else None


def bits(agent):
    done = subprocess.run(mpirun(agent, 4, check), capture_output=True, text=True, timeout=120,
                          check=False)
    if done.returncode != 0:
        fail(f"mpi_check over two hosts: {done.returncode}\n{done.stdout}{done.stderr}")
    here = subprocess.run([mpiexec, flag, "4", steps, "5"], capture_output=True, text=True,
                          timeout=120, check=False)
    there = subprocess.run(mpirun(agent, 4, steps, "5"), capture_output=True, text=True,
                           timeout=120, check=False)
    digests = [ended(run.stdout, r"digest ([0-9a-f]{16})") for run in (here, there)]
    if digests[0] is None or digests[0] != digests[1]:
        fail(f"digests {digests}\n{here.stderr}{there.stderr}")


def cut(agent):
    """The second host's cable is pulled in the middle of training."""
    job = subprocess.Popen(mpirun(agent, 4, steps, "100000000", str(TIMEOUT_S)),
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    errors = []
    reader = threading.Thread(target=lambda: errors.append(job.stderr.read()))
    reader.start()
    for line in job.stdout:
        if line.startswith("step 20"):
            break
    ip("-n", namespace(HOSTS[1]), "link", "set", cable(HOSTS[1]), "down")
    begin = time.monotonic()
    drain = threading.Thread(target=job.stdout.read)
    drain.start()
    try:
        job.wait(timeout=60)
    except subprocess.TimeoutExpired:
        fail("the job had not ended 60 s after the host was cut off")
        job.kill()
    took = time.monotonic() - begin
    reader.join()
    drain.join()
    print(f"ended {took:.1f} s after the cut, status {job.returncode}")
    if job.returncode == 0:
        fail("a job that lost a host ended with status 0")
    if took > TIMEOUT_S + LAUNCHER_S + 5:
        fail(f"it took {took:.1f} s")
    named = re.findall(r"error: (rank \d+, \w+ of unit '[^']+': .*)", errors[0])
    print("\n".join(named))
    if not any(re.search(r"did not end within \d+ ms: .*rank [23] has not", text)
               for text in named):
        fail(f"no error names what was waited for and who did not come: {errors[0]}")
    # Nobody is left on either host.
    limit = time.monotonic() + TIMEOUT_S + LAUNCHER_S + 10
    while time.monotonic() < limit:
        left = [pid for host in HOSTS for pid in subprocess.run(
            ["ip", "netns", "pids", namespace(host)], capture_output=True, text=True,
            check=False).stdout.split()]
        if not left:
            return
        time.sleep(0.2)
    fail(f"processes {left} are left")


def main():
    if os.geteuid() != 0:
        skip("needs root")
    version = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False)
    if not any(name in version.stdout + version.stderr for name in ("Open MPI", "OpenRTE")):
        skip("the options are Open MPI's")
    try:
        set_up()
    except OSError as error:
        tear_down()
        skip(f"network namespaces cannot be made: {error}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            agent = pathlib.Path(folder) / "agent"  # HOST COMMAND..., as ssh
            agent.write_text("#!/bin/sh\nhost=$1; shift\n"
                             f'exec ip netns exec "{TAG}-$host" sh -c "$*"\n')
            agent.chmod(0o755)
            bits(str(agent))
            cut(str(agent))
    finally:
        tear_down()
    print(f"{len(failures)} failures")
    sys.exit(1 if failures else 0)


main()
