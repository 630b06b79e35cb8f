"""The tenon program with one changed object, under the scripts that test it: a change costs one compilation, one link and some scripts."""
import json
import os
import re
import shlex
import shutil
import subprocess
import threading

from bench import ROOT, Bench, wall


class ProgramBench(Bench):
    """Everything is below FOLDER: for each worker a folder that looks like a build folder but has a program of its own in bin/."""

    def __init__(self, build, folder, jobs, only):  # pylint: disable=super-init-not-called
        self.build, self.jobs, self.folder, self.here = os.path.abspath(build), jobs, os.path.abspath(folder), threading.local()
        self.end = wall() + 10**7
        with open(os.path.join(self.build, 'compile_commands.json'), encoding='utf-8') as file:
            entries = [e for e in json.load(file) if re.search(r'CMakeFiles/(tenon_program|tenon_frame)\.dir', e['command'])]
        self.commands = {os.path.relpath(e['file'], ROOT): shlex.split(e['command']) for e in entries}
        self.objects = {name: command[command.index('-o') + 1] for name, command in self.commands.items()}
        self.linking = subprocess.run(['ninja', '-C', self.build, '-t', 'commands', '-s', 'bin/tenon'], capture_output=True, text=True,
                                      check=True).stdout.strip()
        scripts = [os.path.join(ROOT, 'tests/server', name) for name in sorted(os.listdir('tests/server'))]
        self.tests = {os.path.basename(path)[:-3]: path for path in scripts if path.endswith('.sh') and re.search(only, path)}
        self.link(self.objects.values(), 'plain')

    def link(self, objects, place, *more):
        """Links the program of a worker's folder, with the object of this folder in place of the one that is missing."""
        folder = os.path.join(self.folder, place)
        if not os.path.exists(os.path.join(folder, 'bin')):
            os.makedirs(os.path.join(folder, 'bin'))
            for name in os.listdir(self.build):
                if name not in ('bin', 'mutate'):
                    os.symlink(os.path.join(self.build, name), os.path.join(folder, name))
        missing = set(self.objects.values()) - set(objects)
        changed = [path for path in objects if path not in self.objects.values()]
        words = [changed[0] if word in missing else word for word in shlex.split(self.linking) if word not in (':', '&&')]
        words = [word for word in words if not re.search('ccache', word)]
        target = os.path.join(folder, 'bin', 'tenon')
        if missing & set(self.frame()):  # an object of a static library goes before it
            words.insert(1, changed[0])
        words[words.index('-o') + 1] = target
        if os.path.exists(target):
            os.remove(target)
        return subprocess.run([*words, *more], cwd=self.build, capture_output=True, text=True, check=False)

    def frame(self):
        return [path for name, path in self.objects.items() if 'tenon_frame' in path]

    def run(self, name, place, limit, cpu, **variables):
        """Processor time of a script with the program of that folder, or None where it failed."""
        scratch = self.scratch(place, name)
        try:
            return self.start(['bash', self.tests[name], os.path.join(self.folder, place)], limit, cpu, TMPDIR=scratch, **variables)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
