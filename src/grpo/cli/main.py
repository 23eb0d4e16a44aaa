"""The command line. A command's module is imported when it is called, so that --help is fast."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module

from grpo.config.leaf import shown
from grpo.distributed import worker
from grpo.errors import GrpoError

USAGE = """\
grpo: train language models with Group Relative Policy Optimization, and see why every update happened.

  grpo train [recipe.toml ...] [--field value ...]   train; without arguments, the embedded model on the CPU
  grpo sft MODEL DATA          supervised fine-tuning on written answers, or on a --task's gold answers
  grpo check TASK              check a task: gold answers pass, junk fails, wrong answers that earn a reward
  grpo eval MODEL              held-out accuracy with its 95% interval
  grpo sample MODEL "PROMPT"   a group of completions, with rewards if the task can score it
  grpo runs [NAME]             list the runs, or report on one
  grpo plan MODEL              memory and compute of a step, predicted without loading the model
  grpo compare --algorithms A,B --seeds N   several algorithms and seeds, and which differences are significant
  grpo export RUN FOLDER       write the trained model as a Hugging Face folder
  grpo lab                     inspect runs in the browser, live, down to the token
  grpo lab build FOLDER        write the lab as a static site
  grpo lab export RUN FILE     write one run as one HTML file, to send to somebody

MODEL is tiny, nano, calculator or guess (embedded), smollm2 (fetched once), the name of a run, a Hugging Face folder or
id, or a GGUF file.
`grpo COMMAND --help` lists a command's options.
`--dry-run` prints the resolved config and exits. `--debug` shows tracebacks.
"""

COMMANDS = {
    "train": "grpo.cli.commands.train",
    "sft": "grpo.cli.commands.sft",
    "check": "grpo.cli.commands.check",
    "eval": "grpo.cli.commands.evaluate",
    "sample": "grpo.cli.commands.sample",
    "runs": "grpo.cli.commands.runs",
    "plan": "grpo.cli.commands.plan",
    "compare": "grpo.cli.commands.compare",
    "export": "grpo.cli.commands.export",
    "lab": "grpo.cli.commands.lab",
}
"""The module of each command; its function `command` takes the remaining arguments and returns the exit code."""


def main(argv: list[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    worker.end_with_launcher()
    try:
        return worker.leave(_dispatch(arguments))
    except GrpoError as error:
        if debug:
            traceback.print_exception(error)
        elif worker.prints(error):
            print(f"grpo: {error}", file=sys.stderr)
        return worker.fail(error)
    except KeyboardInterrupt:
        return worker.leave(130)
    except BrokenPipeError:  # border: the reader of our output, `head` for instance, has left
        sys.stderr.close()
        return 0


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"grpo {version('grpo-lab')}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"commands are {', '.join(COMMANDS)}"
        raise GrpoError(f"unknown command {shown(name)}; {hint}")
    code: int = import_module(COMMANDS[name]).command(rest)
    return code


if __name__ == "__main__":
    sys.exit(main())
