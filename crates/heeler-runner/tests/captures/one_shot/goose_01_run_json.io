# cmd: goose run --no-session --output-format stream-json -t 'hello MOCK[{"text":"hi there"}]'
# exit: 0  wall: 1.10s
   0.358 <
   0.358 <     __( O)>  ● new session · openai mock-model
   0.358 <    \____)    20261116_3 · /project
   0.358 <      L L     goose is ready
   1.048 < {"type":"message","message":{"id":"chatcmpl-9b2f3a76861f46a3aff4","role":"assistant","created":1794828102,"content":[{"type":"text","text":"hi there"}],"metadata":{"userVisible":true,"agentVisible":true}}}
   1.058 < {"type":"complete","total_tokens":120,"input_tokens":100,"output_tokens":20}
