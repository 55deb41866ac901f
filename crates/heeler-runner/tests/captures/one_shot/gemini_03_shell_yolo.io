# cmd: gemini -p 'go MOCK[{"text":"I run","sh":"touch a.txt && echo made"},{"text":"done"}]' -o stream-json --approval-mode yolo
# exit: 0  wall: 4.35s
   3.272 E Warning: Basic terminal detected (TERM=dumb). Visual rendering will be limited. For the best experience, use a terminal emulator with truecolor support.
   3.272 E Warning: 256-color support not detected. Using a terminal with at least 256-color support is recommended for a better visual experience.
   3.391 E YOLO mode is enabled. All tool calls will be automatically approved.
   3.392 E YOLO mode is enabled. All tool calls will be automatically approved.
   3.392 E Ripgrep is not available. Falling back to GrepTool.
   3.392 E [STARTUP] Phase 'cleanup_ops' was started but never ended. Skipping metrics.
   3.395 < {"type":"init","timestamp":"2026-11-16T10:57:08.685Z","session_id":"7e8887be-0d03-4b2d-9ff1-06b12a2b90f9","model":"auto"}
   3.396 < {"type":"message","timestamp":"2026-11-16T10:57:08.687Z","role":"user","content":"go MOCK[{\"text\":\"I run\",\"sh\":\"touch a.txt && echo made\"},{\"text\":\"done\"}]"}
   3.474 < {"type":"message","timestamp":"2026-11-16T10:57:08.764Z","role":"assistant","content":"I run","delta":true}
   3.544 < {"type":"tool_use","timestamp":"2026-11-16T10:57:08.830Z","tool_name":"run_shell_command","tool_id":"run_shell_command__fc_s0_08a4855cf374","parameters":{"command":"touch a.txt && echo made","description":"mock"}}
   3.684 < {"type":"tool_result","timestamp":"2026-11-16T10:57:08.974Z","tool_id":"run_shell_command__fc_s0_08a4855cf374","status":"success","output":"made"}
   3.729 < {"type":"message","timestamp":"2026-11-16T10:57:09.019Z","role":"assistant","content":"done","delta":true}
   3.732 < {"type":"result","timestamp":"2026-11-16T10:57:09.021Z","status":"success","stats":{"total_tokens":360,"input_tokens":300,"output_tokens":60,"cached":0,"input":300,"duration_ms":337,"tool_calls":1,"models":{"gemini-3.5-flash-lite":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100},"gemini-3.8-flash":{"total_tokens":240,"input_tokens":200,"output_tokens":40,"cached":0,"input":200}}}}
