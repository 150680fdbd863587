"""What `import flashinfer` finds in child processes of tests: see `perf.peer_tests.names`."""

from perf.peer_tests.names import install

install()
