# cmd: codex exec --json --skip-git-repo-check hello
# exit: 1  wall: 0.43s
   0.183 E Reading additional input from stdin...
   0.280 < {"type":"thread.started","thread_id":"01a1e400-56a7-76a0-a9cd-c05ca365d6ab"}
   0.287 < {"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `gpt-5.1-codex` not found. Defaulting to fallback metadata; this can degrade performance and cause issues."}}
   0.302 < {"type":"turn.started"}
   0.356 < {"type":"error","message":"Missing environment variable: `MOCK_KEY`."}
   0.362 < {"type":"turn.failed","error":{"message":"Missing environment variable: `MOCK_KEY`."}}
