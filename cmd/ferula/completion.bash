# Completion of ferula in bash:
#
#	source <(ferula completion bash)
_ferula() {
	local line
	COMPREPLY=()
	while IFS= read -r line; do
		[[ $line == :* ]] || COMPREPLY+=("${line%%$'\t'*}")
	done < <("${COMP_WORDS[0]}" __offer "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
	if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]]; then
		compopt -o nospace 2>/dev/null
	fi
}
complete -o default -F _ferula ferula
