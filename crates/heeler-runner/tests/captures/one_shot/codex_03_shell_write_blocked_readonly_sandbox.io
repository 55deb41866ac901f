# cmd: codex exec --json --skip-git-repo-check 'go MOCK[{"sh":"touch a.txt && echo made"},{"echo":true}]'
# exit: 0  wall: 1.17s
   0.222 E Reading additional input from stdin...
   0.504 < {"type":"thread.started","thread_id":"01a1e3ff-f01f-7121-a7be-c02e5a79f859"}
   0.573 < {"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `gpt-5.1-codex` not found. Defaulting to fallback metadata; this can degrade performance and cause issues."}}
   0.579 < {"type":"turn.started"}
   1.021 < {"type":"item.completed","item":{"id":"item_1","type":"agent_message","text":"[[\"user\", \"<environment_context>\\n  <cwd>/project</cwd>\\n  <shell>bash</shell>\\n  <current_date>2026-11-16</current_date>\\n  <timezone>Etc/UTC</timezone>\\n  <filesystem><workspace_roots><root>/tmp/\"], [\"user\", \"go MOCK[{\\\"sh\\\":\\\"touch a.txt && echo made\\\"},{\\\"echo\\\":true}]\"], [\"call\", \"{\\\"name\\\": \\\"exec_command\\\", \\\"arguments\\\": \\\"{\\\\\\\"cmd\\\\\\\": \\\\\\\"touch a.txt && echo made\\\\\\\"}\\\"}\"], [\"output\", \"Chunk ID: 69b845\\nWall time: 0.0000 seconds\\nProcess exited with code 1\\nOriginal token count: 13\\nOutput:\\ntouch: cannot touch 'a.txt': Read-only file system\\n\"]]"}}
   1.034 < {"type":"turn.completed","usage":{"input_tokens":200,"cached_input_tokens":0,"cache_write_input_tokens":0,"output_tokens":40,"reasoning_output_tokens":0}}
