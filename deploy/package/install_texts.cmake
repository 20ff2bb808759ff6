# SPDX-License-Identifier: Apache-2.0
# Part of `cmake --install`: what the program says of itself, and the unit that starts it.
set(prefix "${CMAKE_INSTALL_PREFIX}")
if(prefix STREQUAL "/usr")  # a distribution's own places
  set(sysconfdir /etc)
  set(zsh_folder share/zsh/vendor-completions)
else()
  set(sysconfdir "${prefix}/etc")
  set(zsh_folder share/zsh/site-functions)
endif()

# Writes what the program prints, and installs it.
function(install_output file folder)
  execute_process(COMMAND "${program}" ${ARGN} OUTPUT_FILE "${texts}/${file}"
                  COMMAND_ERROR_IS_FATAL ANY)
  file(INSTALL DESTINATION "${prefix}/${folder}" TYPE FILE FILES "${texts}/${file}")
endfunction()
install_output(sluice share/bash-completion/completions completion bash)
install_output(_sluice "${zsh_folder}" completion zsh)
install_output(sluice.fish share/fish/vendor_completions.d completion fish)
install_output(sluice.1 "${mandir}/man1" manual)

configure_file("${source}/sluice.service.in" "${texts}/sluice.service" @ONLY)
file(INSTALL DESTINATION "${prefix}/lib/systemd/system" TYPE FILE FILES "${texts}/sluice.service")
file(INSTALL DESTINATION "${sysconfdir}/sluice" TYPE FILE FILES "${source}/sluice.yaml")
