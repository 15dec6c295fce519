"""Defines the command line of the program `mirrored` with click; each subcommand is imported when called."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

import click

from mirrored.cli.options import job_options, json_option
from mirrored.errors import MirroredError

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}
_ELASTIC_RESTARTS: Final = 5  # of a program without an elastic training function
_INTERRUPTED: Final = 130  # 128 plus the number of SIGINT, as shells have it


# The packages that an installation can lack, by the command that needs them.
NEEDED: Final = {"doctor": "mirrored.launcher", "plan": "mirrored.perf_model", "run": "mirrored.launcher"}


class _Group(click.Group):
    """A command group that prints mirrored's errors without a traceback, and hides commands that cannot be imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in super().list_commands(ctx) if _is_present(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if not _is_present(cmd_name):
            raise click.UsageError(
                f"{cmd_name!r} needs {NEEDED[cmd_name]}, which this installation does not have.", ctx
            )
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except MirroredError as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:  # click would exit with status 1, like an error
            click.echo("interrupted", err=True)
            raise click.exceptions.Exit(_INTERRUPTED) from None


def _is_present(command: str) -> bool:
    return command not in NEEDED or importlib.util.find_spec(NEEDED[command]) is not None


def _examples(*lines: str) -> str:
    """Formats the examples at the end of a command's help text, one per line, so that click does not join the lines."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


@click.group(cls=_Group, context_settings=_CONTEXT)
@click.version_option(package_name="mirrored")
def main() -> None:
    """Synchronous data-parallel training for JAX: the command line program of mirrored.

    Exit status: 0 on success, 1 after an error, 2 for a wrong command line, 130 after Ctrl-C.
    """


@main.command(
    short_help="Show the devices and their replicas.",
    epilog=_examples(
        "mirrored devices",
        "mirrored devices CPU:0 --replicas 8         8 virtual replicas on one device",
        "mirrored devices --virtual 4 --kind GPU     4 simulated GPUs",
    ),
)
@click.option("--replicas", type=click.IntRange(min=1),
              help="Number of replicas to assign to devices.  [default: one per device]")  # fmt: skip
@click.option("--virtual", type=int, help="Simulate this many devices on the CPU.")
@click.option("--kind", type=click.Choice(["CPU", "GPU", "TPU"], case_sensitive=False), default="CPU",
              help="Kind of device to simulate.")  # fmt: skip
@json_option
@click.argument("names", nargs=-1, metavar="[DEVICE]...")
def devices(names: tuple[str, ...], replicas: int | None, virtual: int | None, kind: str, as_json: bool) -> None:
    """Show the devices, and which replicas run on each.

    DEVICE is a name such as GPU:0 or /gpu:0. Default: all accelerators, or all CPU devices if there are none.
    """
    from mirrored.cli.devices import show_devices

    show_devices(list(names), num_replicas=replicas, virtual=virtual, kind=kind, as_json=as_json)


@main.command(
    short_help="Train a convnet on digits.",
    epilog=_examples("mirrored demo", "mirrored demo --quick --replicas 2 --out report"),
)
@click.option("--replicas", type=click.IntRange(min=1), default=4, help="Number of replicas.")
@click.option("--epochs", type=click.IntRange(min=1), help="Number of epochs.  [default: 12]")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("demo_report"),
              help="Output folder for the report.")  # fmt: skip
@click.option("--quick", is_flag=True, help="Train for two epochs, and accept a lower accuracy.")
@json_option
def demo(replicas: int, epochs: int | None, out: Path, quick: bool, as_json: bool) -> None:
    """Train a convnet on handwritten digits, and write a report.

    The exit status is 1 if a property that the demo checks does not hold.
    """
    from mirrored.cli.demo.command import run_demo

    run_demo(num_replicas=replicas, epochs=epochs or (2 if quick else 12), out=out, must_learn=not quick,
             as_json=as_json)  # fmt: skip


@main.command(
    short_help="Create a small project.",
    epilog=_examples("mirrored new spirals", "mirrored new spirals --keras"),
)
@click.option("--jax", "framework", flag_value="jax", default="jax", show_default=False,
              help="Use plain JAX (the default).")  # fmt: skip
@click.option("--keras", "framework", flag_value="keras", help="Use Keras 3.")
@click.option("--nnx", "framework", flag_value="nnx", help="Use Flax NNX.")
@click.option("--tf", "framework", flag_value="tf", help="Use TensorFlow's names (mirrored.tf).")
@json_option
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
def new(directory: Path, framework: str, as_json: bool) -> None:
    """Create a small project in DIR that trains, has tests, and runs on several workers."""
    from mirrored.cli.new.command import run_new

    run_new(directory, framework, as_json=as_json)


@main.command(
    context_settings={"allow_interspersed_args": False},
    short_help="Run a program on replicas, workers or machines.",
    epilog=_examples(
        "mirrored run --replicas 4 train.py",
        "    one process, four replicas",
        "mirrored run --workers 2 --replicas-per-worker 2 train.py --steps 100",
        "    two processes on this machine",
        "mirrored run --nodes 2 --node-rank 0 --coordinator host0:8476 train.py",
        "    on each of two machines, with its own rank",
        "srun mirrored run train.py",
        "    one worker per Slurm task",
        "mirrored run --elastic --workers 4 train.py",
        "    continues in the surviving processes when workers are killed",
    ),
)
@click.option("--replicas", type=click.IntRange(min=1), help="Run one process with this many replicas.")
@job_options
@click.option("--max-restarts", type=click.IntRange(min=0),
              help="Maximum number of restarts of all workers after a failure.  [default: 0; 5 with --elastic]",
              )  # fmt: skip
@click.option("--log-dir", type=click.Path(path_type=Path, file_okay=False),
              help="Also write the output of worker i to worker-i.log in this folder, and with --elastic the events to "
                   "elastic.jsonl.")  # fmt: skip
@click.option("--grace-seconds", type=click.FloatRange(min=0), default=30.0,
              help="How long the workers may take to save and end after a SIGTERM.")  # fmt: skip
@click.option("--meeting-seconds", type=click.FloatRange(min=1), default=300.0,
              help="Timeout of the rendezvous of several machines.")  # fmt: skip
@click.option("--no-compile-cache", is_flag=True, help="Do not keep compiled programs between runs.")
@click.option(
    "--elastic",
    is_flag=True,
    help="Continue in the surviving processes when a worker is lost, and replace it (mirrored.elastic.run).",
)
@click.option(
    "--min-workers",
    type=click.IntRange(min=1),
    default=1,
    help="The least number of workers with which an elastic job continues.",
)
@click.option("--max-workers", type=click.IntRange(min=1),
              help="The number of workers of an elastic job if none is lost; default: --workers.")  # fmt: skip
@click.option("-m", "is_module", is_flag=True, help="Run PROGRAM as a module, as python -m does.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(program: str, arguments: tuple[str, ...], is_module: bool, replicas: int | None, workers: int,
        replicas_per_worker: int | None, nodes: int, node_rank: int, coordinator: str | None,
        max_restarts: int | None, log_dir: Path | None, grace_seconds: float, meeting_seconds: float,
        no_compile_cache: bool, elastic: bool, min_workers: int, max_workers: int | None) -> None:  # fmt: skip
    """Run PROGRAM on several replicas, workers or machines.

    Every line of output is prefixed with its worker. When one worker fails, its error is printed first, all workers are
    ended, and the exit status is that of the failed worker (128 plus the signal's number, if a signal ended it).
    """
    from mirrored.cli.run import run as run_program
    from mirrored.launcher import Job

    if max_restarts is None:
        max_restarts = _ELASTIC_RESTARTS if elastic else 0
    job = Job(program=program, arguments=arguments, is_module=is_module, workers=workers,
              replicas_per_worker=replicas_per_worker, nodes=nodes, node_rank=node_rank, coordinator=coordinator,
              max_restarts=max_restarts, log_directory=log_dir, grace_seconds=grace_seconds,
              meeting_seconds=meeting_seconds, compile_cache=not no_compile_cache, elastic=elastic,
              min_workers=min_workers, max_workers=max_workers)  # fmt: skip
    run_program(job, replicas=replicas)


@main.command(
    short_help="Check the machines of a job.",
    epilog=_examples(
        "mirrored doctor",
        "mirrored doctor --workers 2 --checkpoints checkpoints",
        "mirrored doctor --nodes 2 --node-rank 0 --coordinator host0:8476",
    ),
)
@job_options
@click.option("--checkpoints", type=click.Path(path_type=Path, file_okay=False),
              help="Checkpoint folder: check that it is shared, its write speed and its free space.")  # fmt: skip
@json_option
def doctor(workers: int, replicas_per_worker: int | None, nodes: int, node_rank: int, coordinator: str | None,
           checkpoints: Path | None, as_json: bool) -> None:  # fmt: skip
    """Check the machines of a job, and name the hosts that have a fault.

    Start it like `mirrored run`. It checks devices, versions, the rendezvous, the all-reduce between neighbours, clocks
    and the disk. The exit status is 1 if it finds a fault.
    """
    from mirrored.cli.doctor.command import run_doctor
    from mirrored.launcher import Job

    job = Job(program="mirrored.cli.doctor.checkup", is_module=True, workers=workers, nodes=nodes,
              replicas_per_worker=replicas_per_worker, node_rank=node_rank, coordinator=coordinator)  # fmt: skip
    run_doctor(job, checkpoints, as_json=as_json)


@main.command(
    short_help="Predict the speed on more replicas.",
    epilog=_examples(
        "mirrored plan step.py",
        "mirrored plan step.py --replicas 8,64,512 --plot plan.png -- --batch 64",
        "mirrored plan step.py --bandwidth 25GB/s --latency 5us",
        "mirrored plan step.py --failure-every 4h --restart-time 3m",
    ),
)
@click.argument("program", type=click.Path(exists=True, path_type=Path, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--replicas", default="8,64,512,4096", metavar="N,N,...",
              help="Numbers of replicas to predict, each replica on its own device.")  # fmt: skip
@click.option("--bandwidth", metavar="RATE",
              help="Bandwidth between neighbouring devices, in bytes (or Gbit/s).  [25GB/s, or measured here]",
              )  # fmt: skip
@click.option("--latency", metavar="TIME",
              help="Latency until the first byte arrives.  [5us, or measured here]")  # fmt: skip
@click.option("--keep", "keeps", type=click.Choice(["replica-batch", "global-batch"]), default="replica-batch",
              help="Fixed quantity: replica-batch is weak scaling, global-batch is strong scaling.")  # fmt: skip
@click.option("--speed", type=click.FloatRange(min=0, min_open=True), default=1.0,
              help="Speed of one replica's device relative to a device here.")  # fmt: skip
@click.option("--shared", is_flag=True, help="Predict for replicas that share this machine, as virtual devices do.")
@click.option("--steps", type=click.IntRange(min=1), default=10, help="Minimum number of steps to time.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Plot the prediction into this file.")
@click.option("--failure-every", metavar="TIME",
              help="Also predict goodput with a failure in this time on average: 4h, 30m, 90s.")  # fmt: skip
@click.option("--checkpoint-every", metavar="TIME",
              help="Time between two checkpoints on disk.  [the optimum]")  # fmt: skip
@click.option("--checkpoint-time", metavar="TIME",
              help="How long a checkpoint delays training.  [measured here]")  # fmt: skip
@click.option("--restart-time", metavar="TIME",
              help="From a failure to the first step of restarted processes.  [measured here]")  # fmt: skip
@click.option("--recovery-time", metavar="TIME",
              help="From a failure to the next step of an elastic job.  [measured here]")  # fmt: skip
@json_option
def plan(program: Path, arguments: tuple[str, ...], replicas: str, bandwidth: str | None, latency: str | None,
         keeps: str, speed: float, shared: bool, steps: int, plot: Path | None, failure_every: str | None,
         checkpoint_every: str | None, checkpoint_time: str | None, restart_time: str | None,
         recovery_time: str | None, as_json: bool) -> None:  # fmt: skip
    """Predict how fast PROGRAM trains on more replicas, and name the bottleneck.

    The program runs here until its training step (the compiled function that it calls most) has been timed. The part
    of one replica is then timed alone. To find what more replicas exchange, the step is traced for that many devices,
    which need not exist. All of this takes 5 to 20 seconds. With --shared, or if there are several accelerators,
    all-reduces are measured between the devices here, unless a network is given. All times are per step, also if a call
    runs several (steps_per_call). Put arguments of the program after --.

    With --failure-every, it also predicts goodput (the share of the time that goes into steps that count) for jobs that
    restart from disk, restart from memory, or recover elastically.
    """
    from mirrored.cli.plan import show_plan
    from mirrored.cli.plan_failures import failure_options

    failures = failure_options(failure_every=failure_every, checkpoint_every=checkpoint_every,
                               checkpoint_time=checkpoint_time, restart_time=restart_time,
                               recovery_time=recovery_time)  # fmt: skip
    show_plan(program, list(arguments), replicas=replicas, bandwidth=bandwidth, latency=latency, keeps=keeps,
              speed=speed, shared=shared, steps=steps, plot=plot, as_json=as_json, failures=failures)  # fmt: skip
