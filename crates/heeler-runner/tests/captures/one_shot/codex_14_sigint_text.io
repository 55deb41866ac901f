# cmd: codex exec --json --skip-git-repo-check 'x MOCK[{"text":"word word word word word word word word word word","chunk":4,"delay":0.5}]'
# exit: 1  wall: 3.05s
   0.253 E Reading additional input from stdin...
   0.430 < {"type":"thread.started","thread_id":"01a1e400-2b60-7121-85c8-2d19ec621a86"}
   0.468 < {"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `gpt-5.1-codex` not found. Defaulting to fallback metadata; this can degrade performance and cause issues."}}
   0.553 < {"type":"turn.started"}
