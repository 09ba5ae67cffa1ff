#compdef ferula
# Completion of ferula in zsh:
#
#	source <(ferula completion zsh)
#
# or as a file _ferula in a directory of $fpath.
_ferula() {
	local -a offered flags others
	offered=("${(@f)$("${words[1]}" __offer "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
	case $offered[1] in
	:files) compset -P '--*='; _files ;;
	:directories) compset -P '--*='; _files -/ ;;
	?*)
		offered=("${(@)offered//:/\\:}")
		offered=("${(@)offered/$'\t'/:}")
		flags=("${(@M)offered:#--*=:*}") others=("${(@)offered:#--*=:*}")
		_describe -t flags flag flags -S ''
		_describe -t words word others
		;;
	esac
}

if [[ $funcstack[1] == _ferula ]]; then
	_ferula "$@"
else
	compdef _ferula ferula
fi
