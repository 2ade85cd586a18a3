"""Programs that are legal and often written, and that a sandbox breaks easily."""

from __future__ import annotations

from sandbox.outcome import Status
from sandbox.selfcheck.model import ERROR, Program

LARGE = "".join(f"value_{i} = {i}  # {'x' * 40}\n" for i in range(16_000))  # about 1 MB

PROGRAMS = (
    Program(
        "asyncio",
        "an event loop with tasks and timers",
        "import asyncio\nasync def one(i):\n    await asyncio.sleep(0.01)\n    return i\n"
        "async def main():\n    print(await asyncio.gather(*map(one, range(4))))\nasyncio.run(main())",
        stdout="[0, 1, 2, 3]\n",
    ),
    Program(
        "asyncio-subprocess",
        "an event loop with a child process",
        "import asyncio\nasync def main():\n"
        "    child = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1)\n"
        "    print(await child.communicate())\nasyncio.run(main())",
        stdout="(b'hi\\n', None)\n",
    ),
    Program(
        "threads",
        "a pool of threads",
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(8) as pool:\n"
        "    print(sum(pool.map(lambda x: x * x, range(100))))",
        stdout="328350\n",
    ),
    Program(
        "subprocess",
        "a shell and its exit code",
        "import subprocess\ndone = subprocess.run('echo out; echo err >&2; exit 3', shell=True, capture_output=True)\n"
        "print(done.returncode, done.stdout, done.stderr)",
        stdout="3 b'out\\n' b'err\\n'\n",
    ),
    Program(
        "subprocess-of-the-interpreter",
        "another interpreter with the same packages",
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import numpy; print(1 + 1)'],\n"
        "    capture_output=True, text=True))",
        stdout_has=("returncode=0, stdout='2\\n'",),
    ),
    Program(
        "multiprocessing-process",
        "a child process with a pipe",
        "import multiprocessing as m\ndef work(pipe): pipe.send(6 * 7)\n"
        "if __name__ == '__main__':\n    context = m.get_context('fork')\n    here, there = context.Pipe()\n"
        "    child = context.Process(target=work, args=(there,)); child.start()\n"
        "    print(here.recv()); child.join()",
        stdout="42\n",
    ),
    Program(
        "multiprocessing-pool",
        "a pool works or says at once that there is no shared memory; it never hangs",
        "import multiprocessing as m\ntry:\n    with m.get_context('fork').Pool(2) as pool:\n"
        "        print('pool', pool.map(abs, [-1, 2]))\nexcept OSError as error:\n"
        "    print('pool', type(error).__name__)",
        stdout_has=("pool",),
    ),
    Program(
        "temporary-files",
        "tempfile works, and its files are in scratch",
        "import os, tempfile\nwith tempfile.NamedTemporaryFile('w+') as f:\n    f.write('x'); f.flush()\n"
        "    print(os.path.realpath(f.name).startswith(os.path.realpath('.')))\n"
        "with tempfile.TemporaryDirectory() as d: open(d + '/y', 'w').close()\n"
        "tempfile.TemporaryFile().close(); tempfile.SpooledTemporaryFile(10).close()",
        stdout="True\n",
    ),
    Program(
        "files-in-the-working-directory",
        "files can be written, read, listed and removed where the program starts",
        "import os\nfrom pathlib import Path\nPath('a/b').mkdir(parents=True)\nPath('a/b/c.txt').write_text('x')\n"
        "print(sorted(os.listdir('.')), Path('a/b/c.txt').read_text(), Path.home() == Path.cwd())\n"
        "os.rename('a/b/c.txt', 'd'); os.remove('d')",
        stdout="['a'] x True\n",
    ),
    Program(
        "own-module",
        "a module that the program writes can be imported",
        "open('helper.py', 'w').write('answer = 42')\nimport helper\nprint(helper.answer)",
        stdout="42\n",
    ),
    Program(
        "main-module",
        "a program is __main__, with a file name and no arguments",
        "import sys, __main__\nx = 1\nif __name__ == '__main__': print(__main__.x, len(sys.argv), type(__file__))",
        stdout="1 1 <class 'str'>\n",
    ),
    Program(
        "traceback",
        "a traceback shows the program's own lines and nothing else",
        "def f():\n    raise ValueError('no')\n\nf()",
        status=ERROR,
        stderr="Traceback (most recent call last):\n"
        '  File "main.py", line 4, in <module>\n    f()\n'
        "  File \"main.py\", line 2, in f\n    raise ValueError('no')\nValueError: no\n",
    ),
    Program(
        "traceback-of-a-chain",
        "chained errors are all shown",
        "try:\n    {}['k']\nexcept KeyError as error:\n    raise ValueError('v') from error",
        status=ERROR,
        stderr_has=("KeyError: 'k'", "direct cause", "line 4, in <module>", "ValueError: v"),
    ),
    Program(
        "traceback-of-a-group",
        "a group of errors is shown as such",
        "raise ExceptionGroup('both', [ValueError('a'), TypeError('b')])",
        status=ERROR,
        stderr_has=("ExceptionGroup: both", "ValueError: a", "TypeError: b"),
    ),
    Program(
        "syntax-error",
        "a syntax error points to its place",
        "x = 1\ny = = 2\n",
        status=ERROR,
        stdout="",
        stderr_has=('File "main.py", line 2', "    y = = 2", "^", "SyntaxError: invalid syntax"),
        lacks=("Traceback",),
    ),
    Program(
        "indentation-error",
        "so does wrong indentation",
        "if True:\nprint(1)",
        status=ERROR,
        stderr_has=("line 2", "IndentationError"),
    ),
    Program(
        "source-with-nul",
        "a NUL in the source is the program's error",
        "print('a')\0",
        status=ERROR,
        stderr_has=("null bytes",),
    ),
    Program(
        "source-with-lone-surrogate",
        "half a character in the source is the program's error",
        "print('\ud800')",
        status=ERROR,
        stderr_has=("Error",),
    ),
    Program(
        "source-with-windows-lines",
        "line ends of another system, tabs and a coding line are read",
        "# -*- coding: latin-1 -*-\r\nif True:\r\n\tprint('é')\r\n",
        stdout="é\n",
    ),
    Program(
        "source-of-1-mb",
        "a program of 1 MB runs",
        LARGE + "print(value_15999)",
        stdout="15999\n",
    ),
    Program(
        "future-statement",
        "a future statement comes first",
        "from __future__ import annotations\ndef f(x: Nowhere) -> None: pass\nprint(f.__annotations__['x'])",
        stdout="Nowhere\n",
    ),
    Program(
        "future-not-inherited",
        "and the service's own future statements do not count",
        "def f(x: int): pass\nprint(f.__annotations__['x'])",
        stdout="<class 'int'>\n",
    ),
    Program(
        "dataclass-and-pickle",
        "a class of the program can be pickled",
        "import pickle\nfrom dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\n"
        "print(pickle.loads(pickle.dumps(Point(3))))",
        stdout="Point(x=3)\n",
    ),
    Program(
        "own-source",
        "inspect finds the program's source",
        "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))",
        stdout="def f():\n    return 1\n\n",
    ),
    Program(
        "own-alarm",
        "a program's own alarm works",
        "import signal, time\ndef ring(*_): raise TimeoutError('own')\nsignal.signal(signal.SIGALRM, ring)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05)\ntry:\n    time.sleep(20)\nexcept TimeoutError as e:\n"
        "    print(e)",
        stdout="own\n",
    ),
    Program(
        "collector-runs",
        "the collector is on",
        "import gc\nprint(gc.isenabled(), gc.get_threshold()[0] > 0)",
        stdout="True True\n",
    ),
    Program(
        "random-differs",
        "no two calls draw the same",
        "import os, random, secrets, uuid\nprint(random.random(), os.urandom(4), secrets.token_hex(4), uuid.uuid4())",
        distinct=True,
    ),
    Program(
        "random-differs-each-alone",
        "each source of chance differs by itself",
        "import random\nprint(random.random())",
        distinct=True,
    ),
    Program(
        "numpy-random-differs",
        "numpy's old generator differs from call to call",
        "import numpy\nprint(numpy.random.randint(1 << 40))",
        distinct=True,
    ),
    Program(
        "scipy-draws-differ",
        "scipy draws from that generator without naming it",
        "import scipy.stats\nprint(scipy.stats.norm.rvs(size=2))",
        distinct=True,
    ),
    Program(
        "pandas-samples-differ",
        "and so does pandas",
        "import pandas\nprint(list(pandas.Series(range(10**6)).sample(3)))",
        distinct=True,
    ),
    Program(
        "graphs-differ",
        "networkx draws from the interpreter's generator without naming it",
        "import networkx\nprint(networkx.erdos_renyi_graph(30, 0.5).edges)",
        distinct=True,
    ),
    Program(
        "shuffles-differ",
        "so does every name that a generator's method is imported by",
        "from random import shuffle as mix\nfrom numpy import random as r\nx = list(range(100))\nmix(x)\n"
        "print(x, r.permutation(100))",
        distinct=True,
    ),
    Program(
        "numpy-seed",
        "a seed gives its sequence",
        "import numpy, random\nrandom.seed(7); numpy.random.seed(7)\n"
        "print(random.randrange(1000), numpy.random.randint(1000))",
        stdout="331 175\n",
    ),
    Program(
        "set-order",
        "the order of a set of strings does not depend on what served the call",
        "import subprocess, sys\nprint(hash('a') == hash('a'), sys.flags.hash_randomization)\n"
        "out = subprocess.run([sys.executable, '-c', 'print(hash(\"rstar\"))'], capture_output=True, "
        "text=True).stdout\n"
        "print(int(out) == hash('rstar'))",
        stdout="True 0\nTrue\n",
    ),
    Program(
        "language-and-time-zone",
        "text is UTF-8, numbers have points, clocks show UTC",
        "import locale, sys, time\n"
        "print(sys.stdout.encoding.lower(), sys.getfilesystemencoding(), open('x', 'w').encoding)\n"
        "print(locale.localeconv()['decimal_point'], time.strftime('%z'), time.timezone)",
        stdout_has=("utf-8 utf-8", ". +0000 0"),
    ),
    Program(
        "mathematics",
        "the packages that programs need are there",
        "import mpmath, networkx, numpy, pandas, scipy.optimize, sympy\nx = sympy.Symbol('x')\n"
        "print(sympy.solve(x**3 - 6*x**2 + 11*x - 6), numpy.linalg.matrix_rank(numpy.eye(3)), mpmath.mp.dps,\n"
        "      round(scipy.optimize.brentq(lambda v: v * v - 2, 0, 2), 6), len(networkx.path_graph(4)),\n"
        "      pandas.Series([1, 2]).sum())",
        stdout="[1, 2, 3] 3 15 1.414214 4 3\n",
    ),
    Program(
        "package-that-is-missing",
        "a missing package is named",
        "import no_such_package",
        status=(Status.ERROR,),
        stderr_has=("No module named 'no_such_package'",),
    ),
)
