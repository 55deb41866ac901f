# cmd: codex exec --json --skip-git-repo-check 'x MOCK[{"drop":3,"times":1},{"text":"recovered"}]'
# exit: 0  wall: 1.17s
   0.259 E Reading additional input from stdin...
   0.463 < {"type":"thread.started","thread_id":"01a1e400-26d9-7110-8140-e549bf2591e2"}
   0.498 < {"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `gpt-5.1-codex` not found. Defaulting to fallback metadata; this can degrade performance and cause issues."}}
   0.591 < {"type":"turn.started"}
   0.697 < {"type":"error","message":"Reconnecting... 1/1 (stream disconnected before completion: Transport error: network error: error decoding response body)"}
   0.962 < {"type":"item.completed","item":{"id":"item_1","type":"agent_message","text":"recovered"}}
   0.982 < {"type":"turn.completed","usage":{"input_tokens":100,"cached_input_tokens":0,"cache_write_input_tokens":0,"output_tokens":20,"reasoning_output_tokens":0}}
