"""The listening ports of running workers: who does not belong to the job has no effect, and who does is needed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.jobs import job
from transport.attacks import COUNT, attack, idle

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]


def listening(pid: int) -> dict[int, str]:
    """The TCP ports at which a process listens, and their addresses, from the kernel's tables."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(descriptor)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                address, port = words[1].rsplit(":", 1)
                found[int(port, 16)] = address
    return found


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(max(60, COUNT // 50))
def test_strangers_and_malformed_messages_do_not_disturb_a_job(tmp_path):
    with job("counting", [1, 1], tmp_path, str(tmp_path / "stop")) as started:
        for worker in range(2):
            started.wait_for(worker, "READY")
        ports = [listening(worker.pid) for worker in started.workers]
        everywhere = [port for found in ports for port, address in found.items() if not address.startswith("0100007F")]
        own = [port for port, address in ports[0].items() if address == "0100007F"]
        assert len(own) >= 2, "JAX's coordinator and the peer connection listen on the loopback interface only"
        for port in {port for found in ports for port in found}:
            assert attack(port) >= COUNT
        with idle(own[0], 50), idle(own[-1], 50):
            (tmp_path / "stop").touch()
            ended = started.ends(40)
    assert [end.code for end in ended] == [0, 0], ended[0].output[-2000:] + ended[1].output[-2000:]
    assert ended[0].result == ended[1].result
    assert not set(own) & set(everywhere)


@pytest.mark.long
def test_the_first_worker_alone_raises_as_the_others_do(tmp_path):
    with job("counting", [1, 1], tmp_path, "no", MIRRORED_RENDEZVOUS_SECONDS="4") as started:
        started.workers[1].kill()
        assert started.workers[0].wait(40) == 1
        output = started.output(0)
    assert "RendezvousError: joining the cluster: worker 1 (127.0.0.1:" in output
    assert "did not join at 127.0.0.1:" in output
    assert "Check failure stack trace" not in output


def certificates(folder: Path) -> dict[str, str]:
    """A CA, and a certificate for this machine's loopback address."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,URI:spiffe://test/worker")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test CA", "-days", "2")
    openssl("req", *curve, "-keyout", "own.key", "-out", "own.csr", "-subj", "/CN=worker")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
    openssl("x509", "-req", "-in", "own.csr", "-out", "own.pem", *signing)
    return {
        "JAX_MTLS_CERT_FILE": str(folder / "own.pem"),
        "JAX_MTLS_KEY_FILE": str(folder / "own.key"),
        "JAX_MTLS_CA_FILE": str(folder / "ca.pem"),
        "JAX_MTLS_PEER_URI_PREFIX": "spiffe://test/",
    }


@pytest.mark.long
def test_the_certificates_of_the_environment_secure_jaxs_coordinator(tmp_path):
    import jax

    secured = certificates(tmp_path / "certificates")
    (tmp_path / "stop").touch()
    with job("counting", [1, 1], tmp_path, str(tmp_path / "stop"), **secured) as started:
        if not hasattr(jax.config, "jax_mtls_cert_file"):  # older than 0.12: refused, not left out silently
            assert [worker.wait(40) for worker in started.workers] == [1, 1]
            assert "JAX secures its coordinator by mTLS from version 0.12 on" in started.output(0)
            return
        ended = started.ends(40)
    assert [end.code for end in ended] == [0, 0], ended[0].output[-2000:] + ended[1].output[-2000:]
    assert ended[0].result["secure"] == [True, True]
    with job("counting", [1, 1], tmp_path, "no", MIRRORED_RENDEZVOUS_SECONDS="15", **secured) as started:
        started.wait_for(0, "READY")
        (port,) = {int(line) for line in started.output(0).split("COORDINATOR ")[1].split()[:1]}
        program = f"import jax; jax.distributed.initialize('127.0.0.1:{port}', 2, 1, initialization_timeout=3)"
        stranger = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, timeout=40, env={**os.environ, "JAX_PLATFORMS": "cpu"}
        )
        assert stranger.returncode != 0, "without a certificate nobody joins"
        assert [worker.poll() for worker in started.workers] == [None, None]


@pytest.mark.parametrize(
    ("stopped", "when", "words"),
    [
        (1, "before", r"not all of 127.0.0.1:\d+ have joined at 127.0.0.1:\d+ after \d+ s \(a worker was lost after"),
        pytest.param(0, "before", r"no process answers at 127.0.0.1:\d+ after", marks=pytest.mark.slow),
        pytest.param(
            0,
            "listening",
            r"the coordinator at 127.0.0.1:\d+ has not started the job after \d+ s \(a worker was lost",
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.long
def test_a_worker_that_is_stopped_after_all_have_met_is_not_waited_for(tmp_path, stopped, when, words):
    with job("stopping", [1, 1], tmp_path, str(stopped), when, MIRRORED_RENDEZVOUS_SECONDS="8") as started:
        assert started.workers[1 - stopped].wait(40) == 1
        output = started.output(1 - stopped)
    assert re.search(words, output), output
    assert "Check failure stack trace" not in output
