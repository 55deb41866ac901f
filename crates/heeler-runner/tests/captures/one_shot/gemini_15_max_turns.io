# cmd: gemini -p 'go MOCK[{"sh":"echo 1"},{"sh":"echo 2"},{"sh":"echo 3"},{"text":"done"}]' -o stream-json --approval-mode yolo
# exit: 53  wall: 7.19s
   6.086 E Warning: Basic terminal detected (TERM=dumb). Visual rendering will be limited. For the best experience, use a terminal emulator with truecolor support.
   6.086 E Warning: 256-color support not detected. Using a terminal with at least 256-color support is recommended for a better visual experience.
   6.373 E YOLO mode is enabled. All tool calls will be automatically approved.
   6.373 E YOLO mode is enabled. All tool calls will be automatically approved.
   6.373 E Ripgrep is not available. Falling back to GrepTool.
   6.377 < {"type":"init","timestamp":"2026-11-16T10:59:47.804Z","session_id":"4b72c449-bb28-4520-be5d-f16d169c75c5","model":"auto"}
   6.383 < {"type":"message","timestamp":"2026-11-16T10:59:47.810Z","role":"user","content":"go MOCK[{\"sh\":\"echo 1\"},{\"sh\":\"echo 2\"},{\"sh\":\"echo 3\"},{\"text\":\"done\"}]"}
   6.620 < {"type":"tool_use","timestamp":"2026-11-16T10:59:48.048Z","tool_name":"run_shell_command","tool_id":"run_shell_command__fc_s0_b27678b431f8","parameters":{"command":"echo 1","description":"mock"}}
   6.807 < {"type":"tool_result","timestamp":"2026-11-16T10:59:48.235Z","tool_id":"run_shell_command__fc_s0_b27678b431f8","status":"success","output":"1"}
   6.840 < {"type":"tool_use","timestamp":"2026-11-16T10:59:48.268Z","tool_name":"run_shell_command","tool_id":"run_shell_command__fc_s1_c689b7605c98","parameters":{"command":"echo 2","description":"mock"}}
   6.894 < {"type":"tool_result","timestamp":"2026-11-16T10:59:48.321Z","tool_id":"run_shell_command__fc_s1_c689b7605c98","status":"success","output":"2"}
   6.896 < {"type":"result","timestamp":"2026-11-16T10:59:48.323Z","status":"error","error":{"type":"FatalTurnLimitedError","message":"Reached max session turns for this session. Increase the number of turns by specifying maxSessionTurns in settings.json."},"stats":{"total_tokens":360,"input_tokens":300,"output_tokens":60,"cached":0,"input":300,"duration_ms":0,"tool_calls":2,"models":{"gemini-3.5-flash-lite":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100},"gemini-3.8-flash":{"total_tokens":240,"input_tokens":200,"output_tokens":40,"cached":0,"input":200}}}}
