from attend_service.cli import server

if __name__ == "__main__":  # worker processes import this module too
    server(prog_name="python -m service")
