# Completion of ferula in fish:
#
#	ferula completion fish | source
function __ferula_offers
	set -l words (commandline -opc) (commandline -ct)
	set -l offered ($words[1] __offer $words[2..-1] 2>/dev/null)
	switch "$offered[1]"
		case :files
			__fish_complete_path (commandline -ct)
		case :directories
			__fish_complete_directories (commandline -ct)
		case '*'
			string join \n -- $offered
	end
end
complete -c ferula -f -a '(__ferula_offers)'
