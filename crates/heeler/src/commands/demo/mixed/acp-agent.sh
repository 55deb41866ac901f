#!/bin/sh
# Stands for an agent that speaks the Agent Client Protocol in the demo, and follows a script.
reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
update() {
  printf '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"demo","update":%s}}\n' "$1"
}
while read -r line; do
  id=${line#*'"id":'}
  id=${id%%[!0-9]*}
  case $line in
    *'"method":"initialize"'*) reply '{"protocolVersion":1,"agentCapabilities":{}}' ;;
    *'"method":"session/new"'*) reply '{"sessionId":"demo"}' ;;
    *'"method":"session/prompt"'*)
      read -r greeting < greeting.txt
      text="greeting.txt says $greeting. Looks good."
      update "{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"$text\"}}"
      reply '{"stopReason":"end_turn"}'
      ;;
  esac
done
