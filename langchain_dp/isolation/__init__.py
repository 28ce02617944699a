"""Model calls without traces, and ``private_run`` for a whole chain.

``filters``, ``tasks`` and ``context`` hook into the process. Each hook closes one leak:
hook | leak | test in tests/isolation that fails without it.

- filters: ``Logger.handle`` | an error reporter wraps ``Logger.callHandlers`` |
  test_records_are_dropped_before_hooks_between_logger_and_handlers
- filters: every handler | a provider's module makes its logger during the call |
  test_loggers_or_handlers_made_during_the_call_are_covered
- filters: ``logging.lastResort`` | the same, in an application without a handler |
  test_a_logger_made_during_the_call_prints_nothing_without_a_handler
- filters: log record factory | an application's factory reads every message |
  test_a_factory_of_log_records_sees_nothing_of_a_quiet_call
- filters: ``warnings._showwarnmsg`` | a client warns with the prompt |
  test_warnings_that_the_model_insists_on_go_nowhere
- filters: ``sys.unraisablehook`` | a finalizer fails and quotes the prompt |
  test_an_error_in_a_finalizer_goes_nowhere
- filters: ``threading.excepthook`` | a client's thread fails and quotes the prompt |
  test_an_error_in_a_thread_of_the_model_goes_nowhere
- filters: ``Thread.start`` | the same, in a thread that copies no context |
  test_an_error_in_a_thread_of_the_model_goes_nowhere
- tasks: task factory of the loop | a task's SystemExit ends the event loop |
  test_whatever_a_model_raises_is_one_abstention
- tasks: repr of a task | asyncio's debug mode logs slow tasks with their errors |
  test_an_event_loop_that_debugs_logs_no_prompt
- tasks: unretrieved errors | asyncio reports them when the task is freed |
  test_an_error_that_an_abandoned_task_kept_goes_nowhere
- tasks: exception handler of the loop | asyncio logs a failing callback |
  test_callbacks_of_the_loop_say_nothing
- context: callback managers | handlers in configs, models and instrumentations |
  test_a_manager_patched_by_an_instrumentation_is_cleaned
- context: LangGraph's managers | handlers get the values of an interrupt |
  test_what_a_graph_asks_in_a_private_run_reaches_no_handler
- context: ``BaseLanguageModel.cache`` | a model's cache, or the global one, keeps prompts |
  test_a_cache_is_bypassed_wherever_it_sits
- context: the global cache | code reads ``get_llm_cache()`` directly |
  test_code_that_asks_for_the_global_cache_by_itself_finds_it_empty_and_deaf
"""
