#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that kernels/cuda/registers.py fails where it promises to: on notes of ptxas that are no
warnings, and on traps in machine code, with a kernel that has one and one that has none.
Usage: registers_test.py [NVCC]    without nvcc the second check is skipped
"""
import importlib.util
import pathlib
import shutil
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "kernels/cuda/registers.py"
specification = importlib.util.spec_from_file_location("registers", SCRIPT)
registers = importlib.util.module_from_spec(specification)
specification.loader.exec_module(registers)

NVCC = sys.argv.pop(1) if len(sys.argv) > 1 else shutil.which("nvcc")
KERNELS = """
constexpr int kLimit = 3;
__global__ void __launch_bounds__(128, 1) counts(int* x) { x[threadIdx.x] += kLimit; }
#ifdef TRAPS
__global__ void __launch_bounds__(128, 1) stops(int* x) { if (x[0] > kLimit) __trap(); }
#endif
"""


class Registers(unittest.TestCase):
    def test_notes_that_are_no_warnings_are_found(self):
        for note in (
                "ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async instructions "
                "are serialized due to insufficient register resources",
                "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async is serialized",
                "ptxas info    : (C7508) Ignoring 'setmaxnreg' to maintain minimum requirement."):
            self.assertEqual(registers.loss_in(f"ptxas info    : 0 bytes gmem\n{note}\n"), note)
        self.assertIsNone(registers.loss_in("ptxas info    : Used 75 registers, 3 barriers\n"))

    @unittest.skipUnless(NVCC, "no nvcc")
    def test_a_trap_in_a_kernel_is_found_and_only_there(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "a.cu"
            source.write_text(KERNELS)
            command = [NVCC, "-gencode", "arch=compute_90a,code=sm_90a", "-x", "cu", "-c",
                       str(source), "-o", "a.o"]
            for more, traps in (["-DTRAPS"], ["stops"]), ([], []):
                said, cubin = registers.compiled(command + more)
                self.assertIn("Used", said)
                found = [registers.demangle(name)
                         for name in registers.functions_with_traps(cubin)]
                self.assertEqual(found, traps)


if __name__ == "__main__":
    unittest.main()
