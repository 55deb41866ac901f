# cmd: codex exec --json hello
# exit: 1  wall: 0.48s
   0.439 E Reading additional input from stdin...
   0.439 E Not inside a trusted directory and --skip-git-repo-check was not specified.
