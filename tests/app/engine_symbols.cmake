# SPDX-License-Identifier: Apache-2.0
# The engine ends no process, prints nothing and handles no signals: none of its object files calls
# what would. cmake -D NM=... -D ENGINE=... -D PROCESS=... -P engine_symbols.cmake
# ENGINE and PROCESS are lists of object files and archives; PROCESS has the files that may, where the
# same search must find something.
set(ends exit _exit _Exit quick_exit abort raise kill execv execve fork vfork)
set(prints printf vprintf __printf_chk __vprintf_chk puts putchar perror stdout stderr _ZSt4cout
    _ZSt4cerr _ZSt4clog)
set(handles signal sigaction __sysv_signal sigprocmask pthread_sigmask atexit on_exit at_quick_exit
    _ZSt13set_terminatePFvvE _ZSt15set_new_handlerPFvvE setlocale)
set(forbidden ${ends} ${prints} ${handles})
list(JOIN forbidden "|" alternatives)

# Sets `result` to the lines "OBJECT: SYMBOL" of calls in files.
function(find_calls files result)
  list(FILTER files EXCLUDE REGEX "[.]gch$") # headers compiled before, listed as objects
  execute_process(COMMAND ${NM} -u ${files} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE ";" "," symbols "${symbols}")
  string(REPLACE "\n" ";" symbols "${symbols}")
  set(calls "")
  foreach(line IN LISTS symbols)
    if(line MATCHES "^(.*):$")
      set(object "${CMAKE_MATCH_1}")
    elseif(line MATCHES "^ +[Uw] (${alternatives})(@.*)?$")
      string(APPEND calls "${object}: ${CMAKE_MATCH_1}\n")
    endif()
  endforeach()
  set(${result} "${calls}" PARENT_SCOPE)
endfunction()

find_calls("${PROCESS}" found)
foreach(symbol _exit sigaction stderr on_exit)
  if(NOT found MATCHES ": ${symbol}\n")
    message(FATAL_ERROR "the search finds no ${symbol} where it is called; it found\n${found}")
  endif()
endforeach()
find_calls("${ENGINE}" found)
if(found)
  message(FATAL_ERROR "the engine calls what only the command's process may:\n${found}")
endif()
